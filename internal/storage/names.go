package storage

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"zone/internal/errdefs"
)

var poolName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]{0,62}$`)

// CheckName refuses what is no name for a pool.
func CheckName(name string) error {
	if poolName.MatchString(name) {
		return nil
	}
	return errdefs.New(errdefs.Usage, "pool "+quote(name),
		"not a pool name; allowed: a letter, then up to 62 of a-z A-Z 0-9 _ . -")
}

// CheckDataset refuses what is no name for a dataset: it must be a clean
// relative path, and its first part must not start with a dot, which is kept
// for drivers. Every driver calls it first, so that no name leads out of the
// pool.
func CheckDataset(name string) error {
	why := datasetFault(name)
	if why == "" {
		return nil
	}
	return errdefs.New(errdefs.Usage, "dataset "+quote(name), "%s", why)
}

func datasetFault(name string) string {
	switch {
	case name == "" || name == ".":
		return "the name is empty"
	case path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../"):
		return "not a clean relative path"
	case name[0] == '.':
		return "the first part must not start with a dot"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return "control characters and invalid UTF-8 are not allowed"
	case len(name) > 1024:
		return "longer than 1024 bytes"
	}
	if slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return len(part) > 255 }) {
		return "a part is longer than 255 bytes"
	}
	return ""
}

// quote shows a name that may hold anything in one short line.
func quote(name string) string {
	clean := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, name)
	if utf8.RuneCountInString(clean) > 80 {
		clean = string([]rune(clean)[:77]) + "..."
	}
	return `"` + clean + `"`
}
