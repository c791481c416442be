package guest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/test/machine"
)

// patch brings two limited zones up to date, one of which breaks the package:
// it is rolled back, and both keep running within their limits.
func patch(t *testing.T, m *machine.Machine) {
	// No cap on CPU: an emulated machine is slow enough.
	m.Must("create", "good", "--image", "base", "--set", "cpu-shares=50", "--set", "capped-memory=256M", "--set", "max-lwps=100")
	m.Must("boot", "good")
	want := []string{"cpu.weight 50", "memory.max 268435456", "pids.max 100"}
	port := source(t, "2.0")
	install := `rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] http://` + gateway(t, m) + ":" + port + ` ./' >/etc/apt/sources.list; cat >/tmp/1.deb; dpkg -i /tmp/1.deb`
	old, err := os.ReadFile(deb(t, "1.0"))
	if err != nil {
		t.Fatal(err)
	}
	if r := m.TryInput(string(old), "exec", "good", "--", "sh", "-c", install); r.Code != 0 {
		t.Fatalf("install: %s%s", r.Stdout, r.Stderr)
	}
	m.Must("halt", "good")
	m.Must("clone", "good", "bad")
	m.Must("boot", "good", "bad")
	m.Exec("bad", "touch /etc/broken")

	r := m.Try("patch", "--all", "--json")
	t.Logf("patch: %s", r.Took)
	var report struct {
		Zones []struct{ Zone, Result, Reason string }
	}
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || r.Code != 3 {
		t.Fatalf("patch: exit code %d, %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	for _, z := range report.Zones {
		if expected := map[string]string{"good": "patched", "bad": "rolled-back"}[z.Zone]; z.Result != expected {
			t.Errorf("%s: %s, want %s: %s", z.Zone, z.Result, expected, z.Reason)
		}
	}
	for name, version := range map[string]string{"good": "2.0", "bad": "1.0"} {
		expectGroup(t, group(t, m.Expect(name, "running").PID), want...)
		if got := m.Exec(name, "dpkg-query -W -f '${Version} ${db:Status-Abbrev}' vm-test; dpkg --audit"); got != version+" ii " {
			t.Errorf("%s has the package at %q", name, got)
		}
	}
}

func gateway(t *testing.T, m *machine.Machine) string {
	var network struct{ Subnet netip.Prefix }
	decode(t, read(t, filepath.Join(m.Home, "network.json")), &network)
	return network.Subnet.Masked().Addr().Next().String()
}

func control(version string) string {
	return "Package: vm-test\nVersion: " + version + "\nArchitecture: all\nMaintainer: test <test@example.invalid>\n" +
		"Description: a package that breaks where it is told to\n"
}

// deb builds the package of a version and returns its file.
func deb(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "vm-test")
	script := "#!/bin/sh\n[ ! -e /etc/broken ]\n"
	if err := os.MkdirAll(filepath.Join(dir, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"control": control(version), "postinst": script} {
		if err := os.WriteFile(filepath.Join(dir, "DEBIAN", name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host(t, "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", dir, dir+".deb")
	return dir + ".deb"
}

// source serves the package in a version as a source of packages, on all
// addresses, and returns the port.
func source(t *testing.T, version string) string {
	t.Helper()
	data, err := os.ReadFile(deb(t, version))
	if err != nil {
		t.Fatal(err)
	}
	packages := fmt.Sprintf("%sFilename: ./vm-test.deb\nSize: %d\nSHA256: %x\n\n", control(version), len(data), sha256.Sum256(data))
	release := fmt.Sprintf("Origin: test\nSuite: test\nDate: Sat, 01 Jan 2022 00:00:00 UTC\nSHA256:\n %x %d Packages\n", sha256.Sum256([]byte(packages)), len(packages))
	files := map[string]string{"/vm-test.deb": string(data), "/Packages": packages, "/Release": release}
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[filepath.Clean(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write([]byte(content))
	})
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
	s.Start()
	t.Cleanup(s.Close)
	_, port, found := strings.Cut(l.Addr().String(), ":")
	if !found {
		t.Fatalf("address %s", l.Addr())
	}
	return port
}
