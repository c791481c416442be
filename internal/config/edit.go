package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"zone/internal/errdefs"
)

// ParseAssignment splits "key=value". The value may hold further "=".
func ParseAssignment(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return "", "", errdefs.New(errdefs.Usage, quoted(s), "is no assignment; allowed: KEY=VALUE, such as cpu-shares=200").
			WithHint(keysHint)
	}
	return key, value, nil
}

// Set gives a key of z a value written as text. Short forms of keys are
// accepted: capped-cpu for capped-cpu.ncpus, capped-memory for
// capped-memory.physical. Keys that conflict are found by Validate only, so
// that several can be set one after another.
func Set(z *Zone, key, value string) error { return set(z, key, value).err() }

func set(z *Zone, key, value string) Problems {
	k, ok := lookup(key)
	if !ok {
		return Problems{{Key: shown(key), Text: unknown(key)}}
	}
	if why := k.set(z, value); why != "" {
		return Problems{{Key: shown(k.Name), Text: why}}
	}
	return nil
}

// SetAll makes every assignment "key=value", then checks the whole. All
// problems are reported at once, and z changes only when there are none.
func SetAll(z *Zone, assignments []string) error {
	next := *z
	var all Problems
	for _, a := range assignments {
		key, value, err := ParseAssignment(a)
		if err != nil {
			all = append(all, Problem{Text: err.Error()})
			continue
		}
		all = append(all, set(&next, key, value)...)
	}
	all = append(all, unreported(next, all)...)
	if err := all.err(); err != nil {
		return err
	}
	*z = next
	return nil
}

// Clear unsets a key, or all keys of a resource: "attr", "capped-memory".
// One that is not set already is no error.
func Clear(z *Zone, key string) error {
	found := false
	if key == strings.TrimSuffix(attrPrefix, ".") {
		z.Attr, found = nil, true
	}
	for _, k := range Keys() {
		if strings.HasPrefix(k.Name, key+".") {
			k.clear(z)
			found = true
		}
	}
	if found {
		return nil
	}
	k, ok := lookup(key)
	if !ok {
		return Problems{{Key: shown(key), Text: unknown(key)}}.err()
	}
	k.clear(z)
	return nil
}

// Get returns the text of a key and whether it is set. An unknown key is not
// set; see Lookup.
func Get(z Zone, key string) (string, bool) {
	k, ok := lookup(key)
	if !ok {
		return "", false
	}
	return k.get(&z)
}

// Lookup returns the key of that name or short form, or an error of kind Usage
// that names the nearest.
func Lookup(key string) (Key, error) {
	k, ok := lookup(key)
	if !ok {
		return Key{}, Problems{{Key: shown(key), Text: unknown(key)}}.err()
	}
	return k, nil
}

// Effective returns what holds for a key of the zone called name: its value,
// else its default, else "" (no limit).
func Effective(z Zone, name, key string) string {
	k, ok := lookup(key)
	if !ok {
		return ""
	}
	z = z.WithDefaults(name)
	if v, ok := k.get(&z); ok {
		return v
	}
	return k.Default
}

// EffectiveValue is Effective as data: bool, json.Number, Size (bytes in
// JSON), Duration (seconds in JSON), string, or a list of maps of strings; nil
// where there is no value.
func EffectiveValue(z Zone, name, key string) any {
	k, ok := lookup(key)
	text := Effective(z, name, key)
	if !ok || text == "" && k.Type != TypeString {
		return nil
	}
	switch k.Type {
	case TypeBool:
		return text == "true"
	case TypeInt, TypeNumber:
		return json.Number(text)
	case TypeList:
		return entriesOf(text)
	case TypeSize:
		v, _ := parseSize(text)
		return v
	case TypeDuration:
		v, _ := time.ParseDuration(text)
		return Duration(v)
	}
	if _, set := Get(z.WithDefaults(name), key); !set {
		return nil
	}
	return text
}

// Change is one key that differs between two definitions. Old and New are
// empty when the key is not set there.
type Change struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// Diff returns the keys that differ, in the order of Keys.
func Diff(from, to Zone) []Change {
	var changes []Change
	for _, k := range zoneKeys(from, to) {
		a, aSet := k.get(&from)
		b, bSet := k.get(&to)
		if a != b || aSet != bSet {
			changes = append(changes, Change{Key: k.Name, Old: a, New: b})
		}
	}
	return changes
}

// AllKeys returns Keys with "attr.NAME" replaced by the attributes z has.
func AllKeys(z Zone) []Key { return zoneKeys(z) }

// zoneKeys returns Keys with "attr.NAME" replaced by the attributes that any
// of the zones has, sorted.
func zoneKeys(zones ...Zone) []Key {
	keys := Keys()
	keys = keys[:len(keys)-1]
	names := map[string]bool{}
	for _, z := range zones {
		for n := range z.Attr {
			names[n] = true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		keys = append(keys, attrKey(n))
	}
	return keys
}

// SetKeys returns the keys that z sets, attributes by their names, in the
// order in which they are rendered.
func SetKeys(z Zone) []Key {
	var keys []Key
	for _, k := range zoneKeys(z) {
		if _, ok := k.get(&z); ok {
			keys = append(keys, k)
		}
	}
	return keys
}

// shown is a key as typed by the user, safe for a message.
func shown(key string) string {
	if nameForm.MatchString(key) {
		return key
	}
	return quoted(key)
}
