package network

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
	"zone/internal/host"
)

func addrs(s ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func prefixes(s ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestAllocate(t *testing.T) {
	for _, c := range []struct {
		name, subnet string
		used         []netip.Addr
		want         string // empty: full
	}{
		{"first", "10.213.0.0/20", nil, "10.213.0.2"},
		{"next", "10.213.0.0/20", addrs("10.213.0.2", "10.213.0.3"), "10.213.0.4"},
		{"gap", "10.213.0.0/20", addrs("10.213.0.2", "10.213.0.4"), "10.213.0.3"},
		{"mapped", "10.213.0.0/20", addrs("::ffff:10.213.0.2"), "10.213.0.3"},
		{"foreign", "10.213.16.0/20", addrs("10.213.0.2"), "10.213.16.2"},
		{"last", "10.213.0.0/29", addrs("10.213.0.2", "10.213.0.3", "10.213.0.4", "10.213.0.5"), "10.213.0.6"},
		{"full", "10.213.0.0/29", addrs("10.213.0.2", "10.213.0.3", "10.213.0.4", "10.213.0.5", "10.213.0.6"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &Network{Subnet: netip.MustParsePrefix(c.subnet)}
			got, err := n.Allocate(c.used)
			if c.want == "" {
				if err == nil || !strings.Contains(err.Error(), "all 5 addresses of 10.213.0.0/29 are in use") {
					t.Fatalf("got %v, %v; want an error that says the subnet is full", got, err)
				}
				return
			}
			if err != nil || got.String() != c.want {
				t.Fatalf("got %v, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestAllocateFillsSubnet(t *testing.T) {
	n := &Network{Subnet: netip.MustParsePrefix("10.213.0.0/24")}
	var used []netip.Addr
	for range 253 {
		a, err := n.Allocate(used)
		if err != nil {
			t.Fatalf("after %d addresses: %v", len(used), err)
		}
		used = append(used, a)
	}
	if _, err := n.Allocate(used); err == nil {
		t.Fatal("a 254th address was given out")
	}
}

func TestNames(t *testing.T) {
	const a, b = "0190c3a0-0000-7000-8000-000000000001", "0190c3a0-0000-7000-8000-000000000002"
	if got := MAC(a).String(); got != "2a:25:39:76:10:f7" || got == MAC(b).String() {
		t.Errorf("MAC addresses %s and %s", got, MAC(b))
	}
	for _, id := range []string{a, b, "", "x"} {
		if m := MAC(id); len(m) != 6 || m[0]&1 != 0 || m[0]&2 == 0 {
			t.Errorf("MAC(%q) = %s: not locally administered unicast", id, m)
		}
		if l := HostLink(id); !regexp.MustCompile(`^zv[0-9a-f]{10}$`).MatchString(l) {
			t.Errorf("HostLink(%q) = %s", id, l)
		}
	}
	if HostLink(a) == HostLink(b) {
		t.Error("two zones share a host link")
	}
	if name, start := identity("/var/lib/zone"); name != "zone0" || start != 0 {
		t.Errorf("default home: %s, %d", name, start)
	}
	name, start := identity("/srv/other/")
	same, _ := identity("/srv/other")
	if !regexp.MustCompile(`^zn[0-9a-f]{8}$`).MatchString(name) || start < 0 || name != same {
		t.Errorf("other home: %s, %s, %d", name, same, start)
	}
}

func TestChooseSubnet(t *testing.T) {
	for _, c := range []struct {
		name  string
		start int
		taken []netip.Prefix
		want  string // empty: none free
	}{
		{"free", 0, nil, "10.213.0.0/20"},
		{"start", 3, nil, "10.213.48.0/20"},
		{"start goes round", len(candidates()) + 1, nil, "10.213.16.0/20"},
		{"address inside", 0, prefixes("10.213.0.1/32"), "10.213.16.0/20"},
		{"gateway of another home", 0, prefixes("10.213.0.1/20", "10.213.16.1/20"), "10.213.32.0/20"},
		{"second block", 0, prefixes("10.213.0.0/16"), "10.214.0.0/20"},
		{"wrap", len(candidates()) - 1, prefixes("172.30.240.0/24"), "10.213.0.0/20"},
		{"all of ten", 0, prefixes("10.0.0.0/8"), "172.30.0.0/20"},
		{"unrelated", 0, prefixes("192.168.0.0/16", "10.212.0.0/16"), "10.213.0.0/20"},
		{"none", 5, prefixes("10.0.0.0/8", "172.16.0.0/12"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := chooseSubnet(c.start, c.taken)
			if c.want == "" {
				if err == nil || errdefs.HintOf(err) == "" {
					t.Fatalf("got %v, %v; want an error with a hint", got, err)
				}
				return
			}
			if err != nil || got.String() != c.want {
				t.Fatalf("got %v, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestRules(t *testing.T) {
	want, err := os.ReadFile("testdata/rules.golden")
	if err != nil {
		t.Fatal(err)
	}
	got := Rules("zone0", netip.MustParsePrefix("10.213.0.0/20"))
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("rules differ (-want +got):\n%s", diff)
	}
}

type runnerFunc func(host.Cmd) (host.Result, error)

func (f runnerFunc) Run(_ context.Context, c host.Cmd) (host.Result, error) { return f(c) }

func TestNftMissing(t *testing.T) {
	n := &Network{Runner: runnerFunc(func(c host.Cmd) (host.Result, error) {
		return host.Result{}, &host.CommandError{
			Argv: []string{c.Name}, ExitCode: -1, Err: &exec.Error{Name: c.Name, Err: exec.ErrNotFound},
		}
	})}
	err := n.nft(context.Background(), "")
	if !errdefs.Is(err, errdefs.NotSupported) || errdefs.HintOf(err) == "" {
		t.Errorf("got %v; want kind not supported, with a hint", err)
	}
}

func TestOpenReadsRecord(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          string // part of the error, empty: good
	}{
		{"good", `{"bridge": "zn0", "subnet": "10.1.0.0/24"}`, ""},
		{"not JSON", `bridge=zn0`, "network.json"},
		{"long bridge", `{"bridge": "abcdefghijklmnop", "subnet": "10.1.0.0/24"}`, "up to 14 letters"},
		{"quoted bridge", `{"bridge": "a\" drop", "subnet": "10.1.0.0/24"}`, "bridge"},
		{"no subnet", `{"bridge": "zn0"}`, "such as 10.213.0.0/20"},
		{"not masked", `{"bridge": "zn0", "subnet": "10.1.0.1/24"}`, "such as"},
		{"too small", `{"bridge": "zn0", "subnet": "10.1.0.0/30"}`, "8 to 29 bits"},
		{"IPv6", `{"bridge": "zn0", "subnet": "fd00::/64"}`, "IPv4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := t.TempDir()
			if err := os.WriteFile(filepath.Join(home, "network.json"), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := Open(home, t.TempDir(), nil)
			if c.want == "" {
				if err != nil || n.Name != "zn0" || n.Gateway().String() != "10.1.0.1" {
					t.Fatalf("got %v, %v", n, err)
				}
				return
			}
			if !errdefs.Is(err, errdefs.Usage) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v; want a usage error with %q", err, c.want)
			}
		})
	}
}

func TestResolvConf(t *testing.T) {
	const stub = "# Do not edit.\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n"
	for _, c := range []struct {
		name, etc, systemd, want string
		none                     bool
	}{
		{name: "plain", etc: "nameserver 192.0.2.53\n", want: "nameserver 192.0.2.53\n"},
		{
			name: "options kept", etc: "domain  a.example\nnameserver 192.0.2.53\noptions trust-ad\n",
			want: "nameserver 192.0.2.53\ndomain a.example\noptions trust-ad\n",
		},
		{
			name: "stub", etc: stub, systemd: "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch other\n",
			want: "nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\nsearch lan\n",
		},
		{name: "stub alone", etc: stub, want: "options edns0\nsearch lan\n", none: true},
		{
			name: "mixed", etc: "nameserver 127.0.0.1\nnameserver 192.0.2.9\n", systemd: "nameserver 192.0.2.9\nnameserver 192.0.2.1",
			want: "nameserver 192.0.2.9\nnameserver 192.0.2.1\n",
		},
		{name: "only trust", etc: "nameserver ::1\noptions trust-ad\n", systemd: "nameserver 192.0.2.1\n", want: "nameserver 192.0.2.1\n"},
		{name: "wildcard", etc: "nameserver 0.0.0.0\n", want: "", none: true},
		{name: "systemd unused", etc: "nameserver 192.0.2.53\n", systemd: "nameserver 192.0.2.1\n", want: "nameserver 192.0.2.53\n"},
		{name: "no server", etc: "search lan\n", systemd: "nameserver 192.0.2.1\n", want: "nameserver 192.0.2.1\nsearch lan\n"},
		{name: "IPv6 only", etc: "nameserver 2001:db8::1\nnameserver fe80::1%eth0\n", want: "", none: true},
		{name: "both families", etc: "nameserver 2001:db8::1\nnameserver 192.0.2.1\n", want: "nameserver 192.0.2.1\n"},
		{name: "nonsense", etc: "nameserver\nnameserver x\n; c\n\t\nnameserver 192.0.2.1 # c\n", want: "nameserver 192.0.2.1\n"},
		{name: "missing", want: "", none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, filepath.Join(root, "etc/resolv.conf"), c.etc)
			put(t, filepath.Join(root, "run/systemd/resolve/resolv.conf"), c.systemd)
			got, err := ResolvConf(filepath.Join(root, "etc"))
			if errors.Is(err, ErrNoNameserver) != c.none || (err != nil && !c.none) {
				t.Errorf("error %v, want ErrNoNameserver: %v", err, c.none)
			}
			if diff := cmp.Diff(ResolvHeader+"\n"+c.want, string(got)); diff != "" {
				t.Errorf("content differs (-want +got):\n%s", diff)
			}
		})
	}
}

// put writes a file with its directories; empty content means no file.
func put(t *testing.T, path, content string) {
	t.Helper()
	if content == "" {
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
