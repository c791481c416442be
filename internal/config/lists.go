package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"zone/internal/errdefs"
)

// FS is a directory of the host that a zone sees.
type FS struct {
	Dir     string `toml:"dir,omitempty" json:"dir,omitempty"`         // in the zone
	Special string `toml:"special,omitempty" json:"special,omitempty"` // on the host
	Type    string `toml:"type,omitempty" json:"type,omitempty"`       // "" is FSLofs
	Options string `toml:"options,omitempty" json:"options,omitempty"` // "" is FSReadOnly
}

// What an FS can be.
const (
	FSLofs      = "lofs" // the directory itself, not a copy
	FSReadOnly  = "ro"
	FSReadWrite = "rw"
)

// Device gives a zone devices of the host.
type Device struct {
	Match string `toml:"match,omitempty" json:"match,omitempty"` // a path or shell pattern below /dev
}

// entryField is one field of the entries of a list.
type entryField struct {
	name, allowed string
	required      bool
	check         func(string) string // why a value is refused, or ""
}

// record is an entry of a list: pointers to its fields, in the order of the
// list's description. The first tells one entry from another.
type record[T any] interface {
	*T
	values() []*string
}

func (f *FS) values() []*string { return []*string{&f.Dir, &f.Special, &f.Type, &f.Options} }

func (d *Device) values() []*string { return []*string{&d.Match} }

func deviceFields() []entryField {
	return []entryField{{"match", "the path of a device below /dev or a shell pattern of such paths, such as /dev/net/tun or /dev/ttyUSB*", true, validMatch}}
}

func validMatch(s string) string {
	if _, err := path.Match(s, ""); err != nil {
		return "is no pattern"
	}
	if why := validPath(s); why != "" {
		return why
	}
	if !strings.HasPrefix(s, "/dev/") {
		return "does not lie below /dev"
	}
	return ""
}

func fsFields() []entryField {
	choice := func(name string, words ...string) entryField {
		return entryField{name, anyOf(words), false, func(s string) string {
			if !slices.Contains(words, s) {
				return "is no such choice"
			}
			return ""
		}}
	}
	const pathAllowed = "an absolute path without spaces, semicolons and .., not / itself"
	return []entryField{
		{"dir", pathAllowed + ", outside of /proc, /sys, /dev and /run/host", true, func(s string) string {
			return validPath(s, "/proc", "/sys", "/dev", "/run/host")
		}},
		{"special", pathAllowed + ", outside of /proc, /sys, /dev and /run", true, func(s string) string {
			return validPath(s, "/proc", "/sys", "/dev", "/run")
		}},
		choice("type", FSLofs),
		choice("options", FSReadOnly, FSReadWrite),
	}
}

// validPath says why s is no path that can stand in a list, or "".
func validPath(s string, outside ...string) string {
	bad := func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == ';' || r == unicode.ReplacementChar
	}
	switch {
	case !path.IsAbs(s) || s == "/" || path.Clean(s) != s || strings.ContainsFunc(s, bad) || len(s) > maxText:
		return "is no such path"
	}
	for _, o := range outside {
		if s == o || strings.HasPrefix(s, o+"/") {
			return "lies in " + o
		}
	}
	return ""
}

// listKey completes a key whose value is a list of entries. As text an entry
// is "dir=/srv special=/data", and entries are parted by semicolons.
func listKey[T comparable, P record[T]](k Key, list func(*Zone) *[]T, fields []entryField) Key {
	k.Type, k.fields = TypeList, fields
	k.get = func(z *Zone) (string, bool) {
		entries := make([]string, 0, len(*list(z)))
		for _, e := range *list(z) {
			entries = append(entries, entryText(P(&e).values(), fields))
		}
		return strings.Join(entries, "; "), len(entries) > 0
	}
	k.set = func(z *Zone, s string) string {
		var all []T
		for _, text := range strings.Split(s, ";") {
			var e T
			if why := readEntry(P(&e).values(), fields, strings.Fields(text)); why != "" {
				return why
			}
			for _, other := range all {
				if *P(&e).values()[0] == *P(&other).values()[0] {
					return fmt.Sprintf("has two entries with %s %s", fields[0].name, quoted(*P(&e).values()[0]))
				}
			}
			all = append(all, e)
		}
		*list(z) = all
		return ""
	}
	k.clear = func(z *Zone) { *list(z) = nil }
	return k
}

func entryText(values []*string, fields []entryField) string {
	var words []string
	for i, f := range fields {
		if *values[i] != "" {
			words = append(words, f.name+"="+*values[i])
		}
	}
	return strings.Join(words, " ")
}

// readEntry fills the fields of one entry from words "name=value".
func readEntry(values []*string, fields []entryField, words []string) string {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		i := slices.IndexFunc(fields, func(f entryField) bool { return f.name == name })
		if i < 0 {
			return unknownField(name, fields)
		}
		if why := fields[i].refuse(value); why != "" {
			return name + ": " + why
		}
		*values[i] = value
	}
	for i, f := range fields {
		if f.required && *values[i] == "" {
			return fmt.Sprintf("needs %s: %s", f.name, f.allowed)
		}
	}
	return ""
}

func (f entryField) refuse(value string) string {
	if why := f.check(value); why != "" {
		return fmt.Sprintf("%s %s; allowed: %s", quoted(value), why, f.allowed)
	}
	return ""
}

func unknownField(name string, fields []entryField) string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf("unknown field %s; did you mean %s?", quoted(name), near)
	}
	return fmt.Sprintf("unknown field %s; known fields: %s", quoted(name), strings.Join(names, ", "))
}

// lookupList finds the key of a list.
func lookupList(name string) (Key, error) {
	var lists []string
	for _, k := range Keys() {
		if k.fields == nil {
			continue
		}
		if k.Name == name {
			return k, nil
		}
		lists = append(lists, k.Name)
	}
	return Key{}, Problems{{Key: shown(name), Text: "is no list; allowed: " + strings.Join(lists, ", ")}}.err()
}

// Add puts an entry, given as "field=value" words, at the end of a list.
func Add(z *Zone, name string, words []string) error {
	k, err := lookupList(name)
	if err != nil {
		return err
	}
	for _, w := range words {
		if strings.ContainsAny(w, "; \t\n") {
			return Problems{{Key: k.Name, Text: quoted(w) + " has a space or semicolon in it"}}.err()
		}
	}
	text := strings.Join(words, " ")
	if have, ok := k.get(z); ok {
		text = have + "; " + text
	}
	if why := k.set(z, text); why != "" {
		return Problems{{Key: k.Name, Text: why}}.err()
	}
	return nil
}

// Remove takes the entries out of a list that have all of the given fields. To
// find none is an error of kind NotFound.
func Remove(z *Zone, name string, words []string) error {
	k, err := lookupList(name)
	if err != nil {
		return err
	}
	for _, w := range words {
		field, _, _ := strings.Cut(w, "=")
		if !slices.ContainsFunc(k.fields, func(f entryField) bool { return f.name == field }) {
			return Problems{{Key: k.Name, Text: unknownField(field, k.fields)}}.err()
		}
	}
	have, _ := k.get(z)
	entries := strings.Split(have, "; ")
	left := slices.DeleteFunc(slices.Clone(entries), func(e string) bool {
		for _, w := range words {
			if !slices.Contains(strings.Fields(e), w) {
				return false
			}
		}
		return true
	})
	switch {
	case have == "" || len(left) == len(entries):
		return errdefs.New(errdefs.NotFound, name, "no entry with %s", strings.Join(words, " ")).WithHint("zone config show NAME %s", name)
	case len(left) == 0:
		k.clear(z)
	default:
		k.set(z, strings.Join(left, "; "))
	}
	return nil
}

// entriesOf returns the entries of a list's text, each by the names of its fields.
func entriesOf(text string) []map[string]string {
	list := []map[string]string{}
	for _, entry := range strings.Split(text, "; ") {
		m := map[string]string{}
		for _, word := range strings.Fields(entry) {
			name, value, _ := strings.Cut(word, "=")
			m[name] = value
		}
		list = append(list, m)
	}
	return list
}
