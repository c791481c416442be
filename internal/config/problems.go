package config

import (
	"fmt"
	"strings"

	"zone/internal/errdefs"
)

// Problem is one thing wrong with a definition.
type Problem struct {
	File string // empty when it comes from no file
	Line int    // from 1; 0 when not known
	Key  string // empty when it is about the file's form
	Text string // what is wrong, and what is allowed

	// with is the other key of a conflict: not told again when that key's
	// value was refused already.
	with string
}

// String gives "file:line: key: text", without the parts that are not known.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:", p.Line)
		}
		b.WriteByte(' ')
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	return b.String() + p.Text
}

// Problems is everything wrong with a definition, as one error.
type Problems []Problem

// Error gives one problem a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// err returns nil, or the problems as an error of kind Usage.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	e := errdefs.Wrap(errdefs.Usage, "", p)
	for _, one := range p {
		if strings.HasPrefix(one.Text, "unknown key") {
			return e.WithHint(keysHint)
		}
	}
	return e
}

const keysHint = "zone config keys lists every key with its values"

// mentions reports whether a problem of p is about key.
func (p Problems) mentions(key string) bool {
	for _, one := range p {
		if one.Key == key {
			return true
		}
	}
	return false
}
