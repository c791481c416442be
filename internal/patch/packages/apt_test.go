package packages

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestParseAptPlan(t *testing.T) {
	p, err := parseAptPlan(fixture(t, "upgrade-uris.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Changes) != 19 || len(p.Files) != 19 || len(p.KeptBack) != 0 || len(p.Removed) != 0 {
		t.Fatalf("%d changes, %d files, kept %v", len(p.Changes), len(p.Files), p.KeptBack)
	}
	if diff := cmp.Diff(Change{Name: "apt", Old: "2.6.1", New: "2.6.2"}, p.Changes[0]); diff != "" {
		t.Error(diff)
	}
	var size int64
	for _, f := range p.Files {
		size += f.Size
	}
	if size < 16_700_000 || size > 16_900_000 { // apt says 16.8 MB
		t.Errorf("%d bytes", size)
	}
	if f := p.Files[0]; f.Name != "libperl5.36_5.36.0-7+deb12u4_amd64.deb" || f.Size != 4207640 || len(f.SHA256) != 64 {
		t.Errorf("%+v", f)
	}
}

func TestParseAptPlanHeldAndNew(t *testing.T) {
	p, err := parseAptPlan(fixture(t, "upgrade-held.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{{Name: "libnewdep1:i386", New: "1:2.0-1"}, {Name: "libssl3", Old: "3.0.20-1~deb12u2", New: "3.0.22-1~deb12u2"}}
	if diff := cmp.Diff(want, p.Changes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"openssl"}, p.KeptBack); diff != "" {
		t.Error(diff)
	}
}

func TestParseAptPlanRefuses(t *testing.T) {
	good := fixture(t, "upgrade-held.txt")
	for name, text := range map[string]string{
		"empty":          "",
		"no totals":      good[:strings.Index(good, "1 upgraded")],
		"a wrong total":  strings.Replace(good, "1 upgraded", "2 upgraded", 1),
		"a foreign form": strings.Replace(good, "   libssl3 (3.0.20-1~deb12u2 => 3.0.22-1~deb12u2)", "   libssl3/stable 3.0", 1),
		"no hash":        strings.ReplaceAll(good, "SHA256:", "MD5Sum:"),
		"a path as name": strings.Replace(good, " libssl3_3.0", " ../libssl3_3.0", 1),
		"a hidden total": strings.Replace(good, "The following NEW packages", "The next NEW packages", 1),
		"an odd hash":    strings.Replace(good, "SHA256:f2", "SHA256:F2", 1),
	} {
		if p, err := parseAptPlan(text); err == nil {
			t.Errorf("%s: accepted: %+v", name, p)
		}
	}
}

func FuzzParseAptPlan(f *testing.F) {
	f.Add(fixture(f, "upgrade-uris.txt"))
	f.Add(fixture(f, "upgrade-held.txt"))
	f.Fuzz(func(t *testing.T, out string) {
		p, err := parseAptPlan(out)
		if err != nil {
			return
		}
		for _, file := range p.Files {
			if strings.ContainsAny(file.Name, "/\x00") || file.Name == ".." || !isSHA256(file.SHA256) || file.Size < 0 {
				t.Errorf("unsafe file %+v", file)
			}
		}
	})
}

func FuzzAptNotSecurity(f *testing.F) {
	f.Add(fixture(f, "upgrade-simulated.txt"))
	f.Fuzz(func(t *testing.T, out string) {
		for _, s := range aptNotSecurity(out) {
			if strings.ContainsAny(s, " \n:") {
				t.Errorf("unsafe pin %q", s)
			}
		}
	})
}

func TestAptNotSecurity(t *testing.T) {
	out := fixture(t, "upgrade-simulated.txt")
	if got := aptNotSecurity(out); len(got) != 0 { // all 19 come from the security archive
		t.Errorf("%v", got)
	}
	out += "Inst tiny [1] (2 Debian:12.9/stable [all])\nInst lib:i386 [1] (2 Debian:12.9/stable [i386]) []\n" +
		"Inst new (2 Debian:12.9/stable [all])\nInst fresh [1] (1:3 Debian-Security:12/stable-security, Debian:12/x [amd64]) []\n"
	if diff := cmp.Diff([]string{"tiny", "lib"}, aptNotSecurity(out)); diff != "" {
		t.Error(diff)
	}
}

func TestAptFetched(t *testing.T) {
	for text, want := range map[string]int64{
		"Fetched 9415 kB in 1s (7248 kB/s)\n":             9_415_000,
		"Get:1 x\nFetched 15.8 MB in 2s (7 MB/s)\nRead\n": 15_800_000,
		"Fetched 0 B in 0s (0 B/s)\n":                     0,
		"Hit:1 x\n":                                       0,
	} {
		if got, err := aptFetched(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestUnplanned(t *testing.T) {
	have := dpkgVersions("a\tamd64\t2\tii \nb\tall\t1\tii \nc\tamd64\t2\tiF \nlib\tamd64\t2\tii \nlib\ti386\t1\tii \nheld\tall\t2\thi \n")
	p := Plan{Changes: []Change{
		{Name: "a", New: "2"},
		{Name: "b", New: "2"},
		{Name: "c", New: "2"},
		{Name: "lib:i386", New: "2"},
		{Name: "gone", New: "1"},
		{Name: "held", New: "2"},
	}}
	want := []string{
		"b is at 1, planned 2", "c is left half done (state iF)", "lib:i386 is at 1, planned 2", "gone 1 is not installed",
	}
	if diff := cmp.Diff(want, unplanned(p, have)); diff != "" {
		t.Error(diff)
	}
}

func TestBatch(t *testing.T) {
	big := File{Size: aptFetchSize}
	small := File{Size: 1}
	for _, c := range []struct {
		files []File
		want  int
	}{
		{[]File{big, big}, 1},
		{[]File{{Size: 2 * aptFetchSize}, small}, 1},
		{[]File{small, small, big}, 2},
		{[]File{small, small}, 2},
	} {
		if got := batch(c.files); got != c.want {
			t.Errorf("%v: %d, want %d", c.files, got, c.want)
		}
	}
}

// debian makes the files of a small Debian root.
func debian(t *testing.T) (string, *host.Root) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"var/lib/dpkg/status":     "Package: apt\nVersion: 2.6.1\nArchitecture: amd64\n\nPackage: dpkg\nVersion: 1\n",
		"usr/bin/apt-get":         "",
		"etc/apt/sources.list":    "deb http://mirror.example x main\n",
		"etc/apt/preferences.d/p": "",
		"usr/sbin/x":              "",
	} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, root
}

func TestSourcesAndState(t *testing.T) {
	dir, root := debian(t)
	read := func() (string, string) {
		a, err1 := Apt{}.Sources(root)
		b, err2 := Apt{}.State(root)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
	sources, state := read()
	for _, c := range []struct {
		file           string
		sources, state bool // whether it changes them
	}{
		{"etc/apt/sources.list", true, false},
		{"etc/apt/preferences.d/p", false, true},
		{"etc/apt/preferences", false, true},
		{"var/lib/apt/extended_states", false, true},
		{"etc/hostname", false, false},
	} {
		p := filepath.Join(dir, c.file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte("other"), 0o644)); err != nil {
			t.Fatal(err)
		}
		a, b := read()
		if (a != sources) != c.sources || (b != state) != c.state {
			t.Errorf("%s: sources changed %v, state changed %v", c.file, a != sources, b != state)
		}
		sources, state = a, b
	}
}

func TestLock(t *testing.T) {
	dir, root := debian(t)
	unlock, err := Apt{}.Lock(t.Context(), root, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Apt{}).Lock(t.Context(), root, time.Millisecond); !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("taken twice: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, aptFrontend), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lk); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("dpkg's own kind of lock: %v", err)
	}
	unlock()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lk); err != nil {
		t.Errorf("after unlock: %v", err)
	}
}

func TestForbidServices(t *testing.T) {
	dir, root := debian(t)
	p := filepath.Join(dir, policyPath)
	remove, err := forbidServices(root)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(p); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", st, err)
	}
	remove()
	if _, err := os.Stat(p); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
	if err := os.WriteFile(p, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	remove, err = forbidServices(root)
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if data, _ := os.ReadFile(p); !strings.Contains(string(data), "exit 0") {
		t.Error("the zone's own policy was touched")
	}
}

func TestFetchKeepsWhatAptWrote(t *testing.T) {
	dir, root := debian(t)
	var log bytes.Buffer
	z := Zone{Root: root, Log: &log, Exec: func(_ context.Context, c host.Cmd) (host.Result, error) {
		for i := 3; i+2 < len(c.Args); i += 3 {
			if err := os.WriteFile(filepath.Join(dir, c.Args[i+1]), []byte(c.Args[i]), 0o644); err != nil {
				return host.Result{}, err
			}
		}
		return host.Result{Stdout: "Get:1\n"}, nil
	}}
	got := map[string]string{}
	files := []File{{URI: "http://a/1", Name: "one.deb", Size: 10, SHA256: "x"}, {URI: "http://a/2", Name: "two.deb", Size: 10, SHA256: "y"}}
	err := Apt{}.Fetch(t.Context(), z, files, func(f File, in io.Reader) error {
		data, err := io.ReadAll(in)
		got[f.Name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"one.deb": "http://a/1", "two.deb": "http://a/2"}, got); diff != "" {
		t.Error(diff)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, aptWork, "fetch")); len(left) != 0 {
		t.Errorf("left in the zone: %v", left)
	}
}

func TestAptComplaint(t *testing.T) {
	for out, want := range map[string]string{
		"Setting up a\ndpkg: error processing package a (--configure):\n installed a package post-installation script subprocess returned error exit status 1\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n": "error processing package a (--configure): installed a package post-installation script subprocess returned error exit status 1",
		"W: noise\nE: Unable to fetch some archives\n": "Unable to fetch some archives",
		"fine\n": "",
	} {
		if got := aptComplaint(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}

func TestTerminalLines(t *testing.T) {
	var b strings.Builder
	l := &terminalLines{to: &b}
	for _, part := range []string{"plain\n(Reading 5%\r(Read", "ing 100%\rdone)\r\n", "\nhalf", " a line\r"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
	}
	l.end()
	l.end()
	if got, want := b.String(), "plain\ndone)\n\nhalf a line\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	l.buf = nil
	_, _ = l.Write(make([]byte, tailSize))
	if len(l.buf) != 0 {
		t.Errorf("%d bytes are kept of a line without an end", len(l.buf))
	}
}
