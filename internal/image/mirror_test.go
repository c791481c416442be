package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
)

// Recorded on a Debian host that also uses repositories of others; the hosts
// are replaced by examples.
const hostTargets = `Other|Other|nodistro|main|http://other.example/node/
Debian|Debian-Security|bookworm-security|main|http://sec.example/debian-security/
Debian|Debian|bookworm-updates|main|http://one.example/debian/
Debian|Debian|bookworm|contrib|http://contrib.example/debian/
Debian|Debian|bookworm|main|http://one.example/debian/
cloud sdk|cloud sdk|cloud-sdk|main|http://cloud.example/apt/
Debian|Debian|trixie|main|https://two.example/debian/
Debian|Debian Backports|bookworm-backports|main|http://back.example/debian/
||noble|main|http://unfetched.example/debian/

not a target
`

func TestChooseMirrors(t *testing.T) {
	listed := "Debian|Debian|bookworm|main|mirror+file:/etc/apt/mirrors/debian.list\n"
	for name, c := range map[string]struct {
		suite, mirror, targets string
		want                   mirrors
	}{
		"host's own":      {"bookworm", "", hostTargets, mirrors{"http://one.example/debian", "http://sec.example/debian-security"}},
		"by codename":     {"trixie", "", hostTargets, mirrors{"https://two.example/debian", "http://sec.example/debian-security"}},
		"another suite":   {"forky", "", hostTargets, mirrors{"http://one.example/debian", "http://sec.example/debian-security"}},
		"rolling":         {"sid", "", hostTargets, mirrors{"http://one.example/debian", ""}},
		"given":           {"bookworm", "http://m.example/debian/", hostTargets, mirrors{"http://m.example/debian", "http://sec.example/debian-security"}},
		"given, no hosts": {"bookworm", "http://m.example/debian/", "", mirrors{"http://m.example/debian", "http://m.example/debian-security"}},
		"list of mirrors": {"bookworm", "", listed, mirrors{"https://listed.example/debian", "https://listed.example/debian-security"}},
	} {
		t.Run(name, func(t *testing.T) {
			read := func(path string) ([]byte, error) {
				if path != "/etc/apt/mirrors/debian.list" {
					return nil, errors.New("no such list")
				}
				return []byte("# ours\nhttps://listed.example/debian/ priority:1\nhttps://later.example/debian\n"), nil
			}
			got, err := chooseMirrors(c.suite, c.mirror, parseTargets(c.targets), read)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("mirrors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoMirror(t *testing.T) {
	for _, targets := range []string{
		"", "Other|Other|x|main|http://other.example/\n", "Debian|Debian|bookworm|main|cdrom:[x]/\n",
		"Debian|Debian|bookworm|main|mirror+file:/none\n",
	} {
		none := func(string) ([]byte, error) { return nil, errors.New("none") }
		m, err := chooseMirrors("bookworm", "", parseTargets(targets), none)
		if !errdefs.Is(err, errdefs.Usage) || !strings.Contains(errdefs.HintOf(err), "--mirror") {
			t.Errorf("%q: %v, %v", targets, m, err)
		}
	}
}

func TestMmdebstrapArgs(t *testing.T) {
	m := mirrors{"https://m.example/debian", "http://s.example/debian-security"}
	spec := BuildSpec{Source: Source{SourceDebian, "bookworm"}, Include: []string{"nginx", "perl"}}
	want := []string{
		"--mode=root", "--variant=minbase", "--format=directory", "--include=ca-certificates,nginx,perl", "bookworm", "/r",
		"deb https://m.example/debian bookworm main",
		"deb https://m.example/debian bookworm-updates main",
		"deb http://s.example/debian-security bookworm-security main",
	}
	if diff := cmp.Diff(want, mmdebstrapArgs(spec, m, "/r")); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	spec.SuiteOnly, spec.Include, m.Main = true, nil, "http://m.example/debian"
	want = []string{
		"--mode=root", "--variant=minbase", "--format=directory", "bookworm", "/r",
		"deb http://m.example/debian bookworm main",
	}
	if diff := cmp.Diff(want, mmdebstrapArgs(spec, m, "/r")); diff != "" {
		t.Errorf("suite only (-want +got):\n%s", diff)
	}
}

func TestWriteSources(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{
		"etc/apt/sources.list": "deb [signed-by=\"/usr/share/keyrings/k.gpg\"] http://m.example/debian bookworm main\n",
	})
	if err := writeSources(dir, "bookworm", mirrors{"http://m.example/debian", "http://s.example/sec"}); err != nil {
		t.Fatal(err)
	}
	want := `deb [signed-by="/usr/share/keyrings/k.gpg"] http://m.example/debian bookworm main
deb [signed-by="/usr/share/keyrings/k.gpg"] http://m.example/debian bookworm-updates main
deb [signed-by="/usr/share/keyrings/k.gpg"] http://s.example/sec bookworm-security main
`
	if diff := cmp.Diff(want, readTree(t, dir)["etc/apt/sources.list"]); diff != "" {
		t.Errorf("sources.list (-want +got):\n%s", diff)
	}
}

func TestComplaint(t *testing.T) {
	for in, want := range map[string]string{
		"I: a\nE: cause\nW: x\nE: apt-get update failed\nE: mmdebstrap failed to run\n": "cause",
		"E: 1\nE: 2\nE: 3\n": "1; 2",
		"tar: x\n\ntar: y\n": "tar: x; tar: y",
		"1\n2\n3\n4\n":       "2; 3; 4",
		"":                   "",
	} {
		if got := complaint(in); got != want {
			t.Errorf("complaint(%q) = %q, want %q", in, got, want)
		}
	}
}
