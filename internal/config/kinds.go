package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxText     = 1024
	textAllowed = "text on one line, at most 1024 bytes"
	attrNames   = nameAllowed + `, not beginning with "zone"`
)

// scalar completes a key whose field is unset when it has the zero value.
func scalar[T comparable](k Key, field func(*Zone) *T, text func(T) string, parse func(string) (T, string)) Key {
	var zero T
	k.get = func(z *Zone) (string, bool) {
		if v := *field(z); v != zero {
			return text(v), true
		}
		return "", false
	}
	k.set = func(z *Zone, s string) string {
		v, why := parse(s)
		if why == "" {
			*field(z) = v
		}
		return why
	}
	k.clear = func(z *Zone) { *field(z) = zero }
	return k
}

func boolKey(k Key, field func(*Zone) *bool) Key {
	k.Type, k.Allowed = TypeBool, "true or false"
	return scalar(k, field, strconv.FormatBool, func(s string) (bool, string) {
		if s != "true" && s != "false" {
			return false, refuse(s, "is neither", k)
		}
		return s == "true", ""
	})
}

func choiceKey(k Key, field func(*Zone) *string, words ...string) Key {
	k.Type, k.Allowed = TypeChoice, anyOf(words)
	return scalar(k, field, same, func(s string) (string, string) {
		if !slices.Contains(words, s) {
			return "", refuse(s, "is no such choice", k)
		}
		return s, ""
	})
}

func intKey(k Key, field func(*Zone) *int, least, most int) Key {
	k.Type, k.Allowed = TypeInt, fmt.Sprintf("a whole number from %d to %d", least, most)
	return scalar(k, field, strconv.Itoa, func(s string) (int, string) {
		v, err := strconv.Atoi(s)
		switch {
		case err != nil && !wholeForm.MatchString(s):
			return 0, refuse(s, "is no whole number", k)
		case err != nil || v < least || v > most:
			return 0, refuse(s, "is out of range", k)
		}
		return v, ""
	})
}

var (
	wholeForm  = regexp.MustCompile(`^[+-]?[0-9]+$`)
	numberForm = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$`)
)

func numberKey(k Key, field func(*Zone) *float64, least, most float64) Key {
	k.Type, k.Allowed = TypeNumber, fmt.Sprintf("a number from %s to %s, such as 0.75 or 2", numberText(least), numberText(most))
	return scalar(k, field, numberText, func(s string) (float64, string) {
		v, err := strconv.ParseFloat(s, 64)
		switch {
		case !numberForm.MatchString(s): // also keeps out NaN, Inf and hexadecimal
			return 0, refuse(s, "is no number", k)
		case err != nil || v < least || v > most:
			return 0, refuse(s, "is out of range", k)
		}
		return v, ""
	})
}

func sizeKey(k Key, field func(*Zone) *Size, least Size) Key {
	k.Type, k.Allowed = TypeSize, fmt.Sprintf("a size of at least %s, such as 512M or 1.5G (suffixes K, M, G, T, P)", least)
	return scalar(k, field, Size.String, func(s string) (Size, string) {
		v, why := parseSize(s)
		switch {
		case why != "":
			return 0, quoted(s) + " " + why
		case v < least:
			return 0, refuse(s, "is too small", k)
		}
		return v, ""
	})
}

// swapKey stands apart because no swap (0) and no limit (unset) differ.
func swapKey() Key {
	return Key{
		Name: "capped-memory.swap", Type: TypeSize, Live: true, NextBoot: true,
		Allowed: "a size such as 512M or 1.5G (suffixes K, M, G, T, P), or 0 for no swap",
		Doc:     "Swap space the zone may use on top of capped-memory.physical, which must be set too.",
		get: func(z *Zone) (string, bool) {
			if z.CappedMemory.Swap == nil {
				return "", false
			}
			return z.CappedMemory.Swap.String(), true
		},
		set: func(z *Zone, s string) string {
			v, why := parseSize(s)
			if why != "" {
				return quoted(s) + " " + why
			}
			z.CappedMemory.Swap = &v
			return ""
		},
		clear: func(z *Zone) { z.CappedMemory.Swap = nil },
	}
}

func durationKey(k Key, field func(*Zone) *Duration, least, most Duration) Key {
	k.Type, k.Allowed = TypeDuration, fmt.Sprintf("a time from %s to %s, such as 45s or 2m", least, most)
	return scalar(k, field, Duration.String, func(s string) (Duration, string) {
		v, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, refuse(s, "is no span of time", k)
		case Duration(v) < least || Duration(v) > most:
			return 0, refuse(s, "is out of range", k)
		}
		return Duration(v), ""
	})
}

func textKey(k Key, field func(*Zone) *string, check func(string) string) Key {
	k.Type = TypeString
	return scalar(k, field, same, func(s string) (string, string) {
		if s == "" {
			return "", "is empty; allowed: " + k.Allowed + " (clear the key to unset it)"
		}
		if why := check(s); why != "" {
			return "", quoted(s) + " " + why
		}
		return s, ""
	})
}

// attrKey is the key of one attribute. The map is copied before a change,
// because copies of a Zone share it.
func attrKey(name string) Key {
	return Key{
		Name: attrPrefix + name, Type: TypeString, Allowed: textAllowed,
		Doc: "Free metadata under names of your choice.",
		get: func(z *Zone) (string, bool) {
			v, ok := z.Attr[name]
			return v, ok
		},
		set: func(z *Zone, s string) string {
			if !nameForm.MatchString(name) || strings.HasPrefix(name, "zone") {
				return "an attribute cannot have this name; allowed: " + attrNames
			}
			if why := validText(s); why != "" {
				return quoted(s) + " " + why
			}
			m := maps.Clone(z.Attr)
			if m == nil {
				m = map[string]string{}
			}
			m[name], z.Attr = s, m
			return ""
		},
		clear: func(z *Zone) {
			m := maps.Clone(z.Attr)
			delete(m, name)
			if len(m) == 0 {
				m = nil
			}
			z.Attr = m
		},
	}
}

// validText says why s is not one line of readable text, or "".
func validText(s string) string {
	bad := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	switch {
	case len(s) > maxText:
		return "is too long; allowed: " + textAllowed
	case !utf8.ValidString(s) || strings.ContainsFunc(s, bad):
		return "holds characters that do not print; allowed: " + textAllowed
	}
	return ""
}

func refuse(value, why string, k Key) string {
	return quoted(value) + " " + why + "; allowed: " + k.Allowed
}

func same(s string) string { return s }

func numberText(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
