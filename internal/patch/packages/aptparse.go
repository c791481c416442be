package packages

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The headings of apt-get -V that we act on; the text before the colon.
const (
	aptKept       = "The following packages have been kept back"
	aptHeld       = "The following held packages will be changed"
	aptPhased     = "The following upgrades have been deferred due to phasing"
	aptNew        = "The following NEW packages will be installed"
	aptUpgraded   = "The following packages will be upgraded"
	aptDowngraded = "The following packages will be DOWNGRADED"
	aptRemoved    = "The following packages will be REMOVED"
)

var (
	aptEntry = regexp.MustCompile(`^   (\S+) \(([^ ()]+)(?: => ([^ ()]+))?\)$`)
	aptCount = regexp.MustCompile(`^(\d+) upgraded, (\d+) newly installed,(?: (\d+) reinstalled,)?(?: (\d+) downgraded,)? (\d+) to remove and (\d+) not upgraded\.$`)
	aptURI   = regexp.MustCompile(`^'([^']+)' (\S+) (\d+) ?(\S*)$`)
	aptInst  = regexp.MustCompile(`^Inst (\S+) \[[^]]*\] \(\S+ (.*?)\s*\[[^]]*\]\)`)
	aptGot   = regexp.MustCompile(`(?m)^Fetched ([\d.,]+) ([kMGT]?B) in `)
)

// parseAptPlan reads the output of "apt-get -V -q -y --print-uris VERB". The
// lists it names must agree with the totals it gives, so that a format we do
// not understand is an error and never an empty plan.
func parseAptPlan(out string) (Plan, error) {
	var p Plan
	heading, counted := "", false
	n := map[string]int{}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "'"):
			f, err := parseAptURI(line)
			if err != nil {
				return Plan{}, err
			}
			p.Files = append(p.Files, f)
		case strings.HasPrefix(line, "   "):
			if err := p.addAptEntry(heading, line, n); err != nil {
				return Plan{}, err
			}
		case aptCount.MatchString(line):
			counted = true
			if err := checkAptCount(aptCount.FindStringSubmatch(line), n); err != nil {
				return Plan{}, err
			}
		default:
			heading = strings.TrimSuffix(line, ":")
		}
	}
	if !counted {
		return Plan{}, fmt.Errorf("read apt-get's plan: no line with totals")
	}
	return p, nil
}

func (p *Plan) addAptEntry(heading, line string, n map[string]int) error {
	switch heading {
	case aptUpgraded, aptNew, aptDowngraded, aptRemoved, aptKept, aptPhased, aptHeld:
	default:
		return nil // suggestions and the like
	}
	m := aptEntry.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("read apt-get's plan: cannot read %q", line)
	}
	n[heading]++
	switch heading {
	case aptUpgraded, aptDowngraded:
		p.Changes = append(p.Changes, Change{Name: m[1], Old: m[2], New: m[3]})
	case aptNew:
		p.Changes = append(p.Changes, Change{Name: m[1], New: m[2]})
	case aptRemoved:
		p.Removed = append(p.Removed, m[1])
	case aptKept, aptPhased:
		p.KeptBack = append(p.KeptBack, m[1])
	}
	return nil
}

func checkAptCount(m []string, n map[string]int) error {
	for _, c := range []struct{ total, heading string }{
		{m[1], aptUpgraded}, {m[2], aptNew}, {m[4], aptDowngraded}, {m[5], aptRemoved},
	} {
		want, _ := strconv.Atoi(c.total)
		if n[c.heading] != want {
			return fmt.Errorf("read apt-get's plan: %q lists %d, the total says %d", c.heading, n[c.heading], want)
		}
	}
	return nil
}

func parseAptURI(line string) (File, error) {
	m := aptURI.FindStringSubmatch(line)
	if m == nil {
		return File{}, fmt.Errorf("read apt-get's list of files: cannot read %q", line)
	}
	size, err := strconv.ParseInt(m[3], 10, 64)
	if err != nil {
		return File{}, fmt.Errorf("read apt-get's list of files: size of %s: %w", m[2], err)
	}
	hash, ok := strings.CutPrefix(m[4], "SHA256:")
	if !ok || !isSHA256(hash) {
		return File{}, fmt.Errorf("%s: the package source gives no SHA256 sum", m[2])
	}
	if path.Base(m[2]) != m[2] || strings.HasPrefix(m[2], ".") {
		return File{}, fmt.Errorf("read apt-get's list of files: %q is no file name", m[2])
	}
	if _, err := url.Parse(m[1]); err != nil {
		return File{}, fmt.Errorf("read apt-get's list of files: %w", err)
	}
	return File{URI: m[1], Name: m[2], Size: size, SHA256: hash}, nil
}

func isSHA256(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// aptNotSecurity returns the installed packages that "apt-get -s" would upgrade
// from elsewhere than a security archive: one with "security" in its label or
// suite. New packages that an upgrade needs may come from anywhere.
func aptNotSecurity(out string) []string {
	var names []string
	for line := range strings.Lines(out) {
		m := aptInst.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || strings.Contains(strings.ToLower(m[2]), "security") {
			continue
		}
		name, _, _ := strings.Cut(m[1], ":")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// aptFetched returns the bytes of apt's closing line, which it rounds to four
// digits. No such line means that nothing was fetched.
func aptFetched(out string) (int64, error) {
	m := aptGot.FindStringSubmatch(out)
	if m == nil {
		return 0, nil
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	if err != nil {
		return 0, fmt.Errorf("read apt-get's total %q: %w", m[0], err)
	}
	scale := map[string]float64{"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
	return int64(v * scale[m[2]]), nil
}

// dpkgVersions reads "name TAB arch TAB version TAB status" lines. A package
// stands under its name and under name:arch; the status is dpkg's abbreviation,
// "ii " for a whole package.
func dpkgVersions(out string) map[string][2]string {
	v := map[string][2]string{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			continue
		}
		e := [2]string{f[2], strings.TrimSpace(f[3])}
		v[f[0]+":"+f[1]] = e
		if old, ok := v[f[0]]; !ok || old[1] != "ii" {
			v[f[0]] = e
		}
	}
	return v
}

// unplanned lists the packages that are not as the plan says.
func unplanned(p Plan, have map[string][2]string) []string {
	var bad []string
	for _, c := range p.Changes {
		got, ok := have[c.Name]
		switch {
		case !ok:
			bad = append(bad, fmt.Sprintf("%s %s is not installed", c.Name, c.New))
		case got[1] != "ii" && got[1] != "hi":
			bad = append(bad, fmt.Sprintf("%s is left half done (state %s)", c.Name, got[1]))
		case got[0] != c.New:
			bad = append(bad, fmt.Sprintf("%s is at %s, planned %s", c.Name, got[0], c.New))
		}
	}
	return bad
}

// aptComplaint picks the cause from the output of a failed apt-get: what dpkg
// said of the first package it gave up, else apt's own errors.
func aptComplaint(out string) string {
	var apt []string
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "dpkg: error") {
			why := strings.TrimSpace(strings.TrimPrefix(line, "dpkg: "))
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
				why += " " + strings.TrimSpace(lines[i+1])
			}
			return why
		}
		if e, ok := strings.CutPrefix(line, "E: "); ok && len(apt) < 3 {
			apt = append(apt, e)
		}
	}
	return strings.Join(apt, "; ")
}
