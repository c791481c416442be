package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ResolvHeader is the first line of a resolv.conf that zone writes. A file in a
// zone that does not begin with it belongs to the zone's administrator.
const ResolvHeader = "# written by zone; edit freely, remove this line to keep your own"

// ErrNoNameserver says that the host knows no name server a zone could reach.
// The content that comes with it is usable, but the zone resolves no names.
var ErrNoNameserver = errors.New("the host has no IPv4 name server that zones can reach")

// ResolvConf returns the content for a zone's /etc/resolv.conf, made from the
// resolv.conf in the directory hostEtc ("/etc" but in tests). Name servers on
// the host's loopback, which is not the zone's, give way to those in
// run/systemd/resolve/resolv.conf beside hostEtc. IPv6 servers are left out as
// long as zones have no IPv6.
func ResolvConf(hostEtc string) ([]byte, error) {
	etc, err := readIfThere(filepath.Join(hostEtc, "resolv.conf"))
	if err != nil {
		return nil, fmt.Errorf("read name servers: %w", err)
	}
	systemd, err := readIfThere(filepath.Join(filepath.Dir(hostEtc), "run/systemd/resolve/resolv.conf"))
	if err != nil {
		return nil, fmt.Errorf("read name servers: %w", err)
	}
	return renderResolvConf(string(etc), string(systemd))
}

func readIfThere(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func renderResolvConf(etc, systemd string) ([]byte, error) {
	servers, rest, local := parseResolvConf(etc)
	if local {
		upstream, _, _ := parseResolvConf(systemd)
		servers = append(servers, upstream...)
		rest = withoutTrust(rest)
	}
	var b strings.Builder
	b.WriteString(ResolvHeader + "\n")
	seen := make(map[netip.Addr]bool)
	for _, s := range servers {
		if !seen[s] {
			fmt.Fprintf(&b, "nameserver %s\n", s)
			seen[s] = true
		}
	}
	for _, line := range rest {
		b.WriteString(line + "\n")
	}
	if len(servers) == 0 {
		return []byte(b.String()), ErrNoNameserver
	}
	return []byte(b.String()), nil
}

// parseResolvConf returns the servers zones can reach, the other settings, and
// whether the host asks itself: by name or, as the resolver's default is, by
// naming no server at all.
func parseResolvConf(text string) (servers []netip.Addr, rest []string, local bool) {
	named := false
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.ContainsAny(fields[0][:1], "#;") {
			continue
		}
		if fields[0] != "nameserver" {
			rest = append(rest, strings.Join(fields, " "))
			continue
		}
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if err != nil {
			continue
		}
		named = true
		switch a = a.Unmap(); {
		case a.IsLoopback() || a.IsUnspecified():
			local = true
		case a.Is4():
			servers = append(servers, a)
		}
	}
	return servers, rest, local || !named
}

// withoutTrust drops trust-ad: it holds for the host's own validating
// resolver, not for the servers behind it.
func withoutTrust(lines []string) []string {
	var kept []string
	for _, line := range lines {
		f := strings.Fields(line)
		if f[0] == "options" {
			f = slices.DeleteFunc(f, func(s string) bool { return s == "trust-ad" })
			if len(f) == 1 {
				continue
			}
		}
		kept = append(kept, strings.Join(f, " "))
	}
	return kept
}
