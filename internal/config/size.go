package config

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zone/internal/errdefs"
)

// Size is a number of bytes. As text it is "512M" or "1.5G" with binary
// suffixes; in JSON it is the number of bytes.
type Size int64

const (
	sizeUnits   = "KMGTP"
	sizeAllowed = `a number of bytes, or a number with one of the suffixes K, M, G, T, P (powers of 1024), such as 512M or 1.5G`
)

var sizeForm = regexp.MustCompile(`^([0-9]{0,19})(?:\.([0-9]{1,9}))?([A-Za-z]*)$`)

// ParseSize reads a size such as "512M", "1.5G" or "4096". Suffixes are powers
// of 1024 in either case; what a fraction leaves below one byte is dropped.
func ParseSize(s string) (Size, error) {
	n, why := parseSize(s)
	if why != "" {
		return 0, errdefs.New(errdefs.Usage, fmt.Sprintf("size %s", quoted(s)), "%s", why)
	}
	return n, nil
}

// parseSize returns the size, or why s is none.
func parseSize(s string) (Size, string) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil || m[1]+m[2] == "" {
		return 0, "is not a size; allowed: " + sizeAllowed
	}
	shift := uint(0)
	if m[3] != "" {
		i := -1
		if len(m[3]) == 1 {
			i = strings.Index(sizeUnits, strings.ToUpper(m[3]))
		}
		if i < 0 {
			return 0, fmt.Sprintf("has the unknown suffix %q; allowed: %s", m[3], sizeAllowed)
		}
		shift = uint(10 * (i + 1))
	} else if m[2] != "" {
		return 0, "a fraction of a byte; allowed: " + sizeAllowed
	}
	// Exact arithmetic: a float would lose bytes above 2^53.
	n, _ := new(big.Int).SetString("0"+m[1]+m[2], 10)
	n.Lsh(n, shift)
	n.Quo(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(m[2]))), nil))
	if !n.IsInt64() {
		return 0, "is too large; the largest size is 8191P"
	}
	return Size(n.Int64()), ""
}

// String gives the shortest text that ParseSize reads back as the same size:
// whole units, or quarters of the next larger one.
func (s Size) String() string {
	for i := len(sizeUnits) - 1; i >= 0 && s > 0; i-- {
		unit := Size(1) << (10 * (i + 1))
		if s >= unit && s%(unit/4) == 0 {
			fraction := [4]string{"", ".25", ".5", ".75"}[s%unit/(unit/4)]
			return strconv.FormatInt(int64(s/unit), 10) + fraction + sizeUnits[i:i+1]
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText gives String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what ParseSize reads.
func (s *Size) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSize(string(text))
	return err
}

// MarshalJSON gives the number of bytes.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(int64(s)) }

// UnmarshalJSON reads a number of bytes.
func (s *Size) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*int64)(s)) }

// Duration is a span of time. As text it is "30s" or "1m30s"; in JSON it is in
// seconds.
type Duration time.Duration

// String gives the text form, without the zero parts time.Duration prints.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText gives String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads text such as "30s".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errdefs.New(errdefs.Usage, "duration "+quoted(string(text)), "is no span of time; allowed: a number with s, m or h, such as 30s or 2m")
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON gives seconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).Seconds())
}

// UnmarshalJSON reads seconds.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var seconds float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	*d = Duration(seconds * float64(time.Second))
	return nil
}
