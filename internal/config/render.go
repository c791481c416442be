package config

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
)

// Render writes the keys that z sets as TOML, always in the same order and
// form. Parse reads it back as the same zone.
func Render(z Zone) []byte {
	var b bytes.Buffer
	table := ""
	for _, k := range SetKeys(z) {
		if k.fields != nil {
			renderList(&b, k, z)
			table = k.Name
			continue
		}
		resource, name, inTable := strings.Cut(k.Name, ".")
		if !inTable {
			resource, name = "", k.Name
		}
		if resource != table {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "[%s]\n", resource)
			table = resource
		}
		text, _ := k.get(&z)
		fmt.Fprintf(&b, "%s = %s\n", tomlKey(name), tomlValue(k, text))
	}
	return b.Bytes()
}

// renderList writes each entry as a table of its own.
func renderList(b *bytes.Buffer, k Key, z Zone) {
	text, _ := k.get(&z)
	for _, entry := range strings.Split(text, "; ") {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "[[%s]]\n", k.Name)
		for _, word := range strings.Fields(entry) {
			name, value, _ := strings.Cut(word, "=")
			fmt.Fprintf(b, "%s = %s\n", name, tomlString(value))
		}
	}
}

func tomlKey(name string) string {
	bare := func(r rune) bool {
		return r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if name != "" && strings.TrimFunc(name, bare) == "" {
		return name
	}
	return tomlString(name)
}

func tomlValue(k Key, text string) string {
	switch k.Type {
	case TypeBool, TypeInt, TypeNumber:
		return text
	default:
		return tomlString(text)
	}
}

// tomlString writes a basic string. Go's own quoting knows escapes that TOML
// does not.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
