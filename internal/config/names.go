package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"zone/internal/errdefs"
)

const nameAllowed = `letters, digits, "_", "." and "-", the first a letter or a digit, at most 63 characters`

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	hostForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
)

// ValidName refuses what cannot be the name of a zone; the error is of kind
// Usage and says what can.
func ValidName(name string) error {
	if name == "global" {
		return errdefs.New(errdefs.Usage, `zone name "global"`, "is kept for the host itself; choose another name")
	}
	return validName("zone name", name)
}

// ValidSnapshotName refuses what cannot be the name of a snapshot: the part
// behind the "@".
func ValidSnapshotName(name string) error { return validName("snapshot name", name) }

func validName(what, name string) error {
	if !nameForm.MatchString(name) {
		return errdefs.New(errdefs.Usage, what+" "+quoted(name), "not allowed; allowed: %s", nameAllowed)
	}
	return nil
}

// validHostname says why name cannot be a host name, or "".
func validHostname(name string) string {
	const allowed = `labels of letters, digits and "-" joined by ".", at most 64 characters in all`
	if len(name) > 64 {
		return "is too long; allowed: " + allowed
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > 63 || !hostForm.MatchString(label) {
			return "is no host name; allowed: " + allowed
		}
	}
	return ""
}

// Nearest returns the member of known that word most likely meant, or "" when
// none comes near.
func Nearest(word string, known []string) string {
	word = strings.ToLower(word)
	if len(word) > 256 {
		return "" // no name is that long, and the distance costs len(word) each
	}
	best, bestDistance := "", 0
	for _, k := range known {
		d := distance(word, strings.ToLower(k))
		if d <= (max(len(word), len(k))+2)/3 && (best == "" || d < bestDistance) {
			best, bestDistance = k, d
		}
	}
	if best != "" || len(word) < 3 {
		return best
	}
	for _, k := range known {
		if strings.Contains(strings.ToLower(k), word) && (best == "" || len(k) < len(best)) {
			best = k
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// quoted quotes a value for a message, cut to a length that fits a line.
func quoted(s string) string {
	const most = 80
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return strconv.Quote(s)
}

// anyOf lists allowed words for a message.
func anyOf(words []string) string {
	q := slices.Clone(words)
	for i := range q {
		q[i] = strconv.Quote(q[i])
	}
	return strings.Join(q, " or ")
}
