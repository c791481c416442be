package image

import (
	"net/url"
	"strings"

	"zone/internal/errdefs"
)

// mirrors is where the packages of a Debian suite come from. Security is
// empty for suites that have no security fixes of their own.
type mirrors struct {
	Main     string
	Security string
}

// target is one package index the host's own apt knows.
type target struct {
	Origin, Label, Codename, Component, URI string
}

// targetFormat makes apt-get indextargets print what parseTargets reads.
const targetFormat = "$(ORIGIN)|$(LABEL)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)"

func parseTargets(output string) []target {
	var targets []target
	for line := range strings.Lines(output) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 5)
		if len(f) == 5 {
			targets = append(targets, target{f[0], f[1], f[2], f[3], strings.TrimRight(f[4], "/")})
		}
	}
	return targets
}

// rolling reports whether fixes reach the suite itself, so that it has
// neither -updates nor -security.
func rolling(suite string) bool {
	switch suite {
	case "sid", "unstable", "testing", "experimental":
		return true
	}
	return false
}

// chooseMirrors picks the mirrors of a suite: those given (mirror, may be
// empty) and otherwise those the host itself uses for Debian. Other
// repositories of the host are told apart by the origin their signed Release
// file states. mirrorList reads the lists behind "mirror+file:" entries.
func chooseMirrors(suite, mirror string, host []target, mirrorList func(string) ([]byte, error)) (mirrors, error) {
	m := mirrors{Main: strings.TrimRight(mirror, "/")}
	if m.Main == "" {
		m.Main = pick(host, "Debian", suite, mirrorList)
	}
	if m.Main == "" {
		return mirrors{}, errdefs.New(errdefs.Usage, "find a Debian mirror",
			"the package sources of this host name none").
			WithHint("give --mirror URL, or on Debian run apt-get update first")
	}
	if rolling(suite) {
		return m, nil
	}
	m.Security = pick(host, "Debian-Security", suite+"-security", mirrorList)
	if m.Security == "" {
		m.Security = m.Main + "-security"
	}
	return m, nil
}

// pick returns the URI of the host's entry with that label, one of the wanted
// codename first: all suites of Debian stand on the same mirrors.
func pick(host []target, label, codename string, mirrorList func(string) ([]byte, error)) string {
	any := ""
	for _, t := range host {
		if t.Origin != "Debian" || t.Label != label || t.Component != "main" {
			continue
		}
		uri := resolveURI(t.URI, mirrorList)
		if uri == "" {
			continue
		}
		if t.Codename == codename {
			return uri
		}
		if any == "" {
			any = uri
		}
	}
	return any
}

// resolveURI returns an address that also works inside an image: the first
// web address in a list of mirrors kept on the host; "" when there is none.
func resolveURI(uri string, mirrorList func(string) ([]byte, error)) string {
	file, listed := strings.CutPrefix(uri, "mirror+file:")
	if !listed {
		if checkMirror(uri) != nil {
			return ""
		}
		return uri
	}
	text, err := mirrorList("/" + strings.TrimLeft(file, "/"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && checkMirror(f[0]) == nil {
			return strings.TrimRight(f[0], "/")
		}
	}
	return ""
}

// checkMirror refuses what cannot stand in a line of sources.list.
func checkMirror(mirror string) error {
	u, err := url.Parse(mirror)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.ContainsAny(mirror, " \t\r\n[]") {
		return errdefs.New(errdefs.Usage, "--mirror "+mirror, "a mirror is an http:// or https:// address").
			WithHint("--mirror http://HOST/debian")
	}
	return nil
}

// sourcesLines renders the lines of sources.list. options is what stands in
// brackets after "deb", with the brackets, or "".
func sourcesLines(suite string, m mirrors, suiteOnly bool, options string) []string {
	deb := "deb "
	if options != "" {
		deb += options + " "
	}
	lines := []string{deb + m.Main + " " + suite + " main"}
	if suiteOnly || rolling(suite) {
		return lines
	}
	return append(lines,
		deb+m.Main+" "+suite+"-updates main",
		deb+m.Security+" "+suite+"-security main")
}
