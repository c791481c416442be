package system

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zone/test/machine"
)

// A definition is changed, compared, applied to the running zone and taken
// back; the kernel's own numbers say what holds.
func TestConfigLive(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a", "--set", "capped-memory=64M", "--set", "capped-memory.swap=0", "--set", "max-lwps=40")
	if out := m.Must("config", "diff", "a"); out != "" {
		t.Errorf("a halted zone differs: %s", out)
	}
	m.Refused(12, []string{"not running", "zone boot a"}, "config", "apply", "a")
	m.Refused(12, []string{"not running"}, "config", "revert", "a")
	m.Must("boot", "a")
	pid := m.Zones()["a"].PID
	holds := func(what string, want map[[3]string][2]string) {
		t.Helper()
		for f, values := range want {
			if got := groupFile(t, pid, f[0], f[1], f[2]); got != values[0] && got != values[1] {
				t.Errorf("%s: %s holds %s, want %v", what, f[1], got, values)
			}
		}
	}
	memory, lwps := [3]string{"memory", "memory.limit_in_bytes", "memory.max"}, [3]string{"pids", "pids.max", "pids.max"}
	quota, weight := [3]string{"cpu", "cpu.cfs_quota_us", "cpu.max"}, [3]string{"cpu", "cpu.shares", "cpu.weight"}
	same := func(s string) [2]string { return [2]string{s, s} }

	set := m.Try("config", "set", "a", "capped-memory=256M", "max-lwps=60", "capped-cpu=0.5", "cpu-shares=50", "hostname=www")
	if set.Code != 0 || !strings.Contains(set.Stderr, "zone config apply a") || !strings.Contains(set.Stderr, "hostname takes effect at the next boot") {
		t.Errorf("set: %d %s", set.Code, set.Stderr)
	}
	before := map[[3]string][2]string{memory: same(strconv.Itoa(64 << 20)), lwps: same("40"), quota: {"-1", "max 100000"}}
	holds("set alone", before)
	if out := m.Must("config", "diff", "a"); strings.Count(out, " apply\n") != 4 || strings.Count(out, " reboot\n") != 1 {
		t.Errorf("diff:\n%s", out)
	}
	applied := m.Try("config", "apply", "a")
	if applied.Code != 0 || !strings.Contains(applied.Stdout, "capped-memory.physical: 64M -> 256M\n") ||
		!strings.Contains(applied.Stderr, "hostname takes effect at the next boot") {
		t.Errorf("apply: %+v", applied)
	}
	holds("applied", map[[3]string][2]string{
		memory: same(strconv.Itoa(256 << 20)), lwps: same("60"), quota: {"50000", "50000 100000"}, weight: {"512", "50"},
	})
	m.Exec("a", `perl -e '$x = "x" x (60 << 20); $x .= "y" x (30 << 20)'`) // more than before
	if got := m.Exec("a", "hostname"); got != "a" {
		t.Errorf("the running zone calls itself %s", got)
	}

	// What is in use cannot be taken away, and then nothing changes.
	m.Must("config", "set", "a", "capped-memory=8M", "max-lwps=30")
	hold := m.Command(t.Context(), "exec", "a", "--", "perl", "-e", `$x = "x" x (100 << 20); $| = 1; print "held"; sleep 60`)
	out, err := hold.StdoutPipe()
	if err != nil || hold.Start() != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	m.Refused(11, []string{"capped-memory", "in use"}, "config", "apply", "a")
	holds("refused", map[[3]string][2]string{memory: same(strconv.Itoa(256 << 20)), lwps: same("60")})
	m.Exec("a", "pkill -9 perl || kill -9 $(pidof perl)")
	_ = hold.Wait()

	m.Must("config", "revert", "a")
	if got := strings.TrimSpace(m.Must("config", "show", "a", "capped-memory")); got != "256M" {
		t.Errorf("reverted to %s", got)
	}
	if out := m.Must("config", "diff", "a"); out != "" {
		t.Errorf("after revert:\n%s", out)
	}
	m.Must("config", "clear", "a", "capped-memory", "capped-cpu", "cpu-shares", "max-lwps")
	m.Must("config", "apply", "a")
	holds("lifted", map[[3]string][2]string{
		memory: {"9223372036854771712", "max"}, lwps: same("max"), quota: {"-1", "max 100000"}, weight: {"1024", "100"},
	})
	t.Run("edit", func(t *testing.T) { configEdit(t, m.On(t)) })
}

func configEdit(t *testing.T, m *machine.Machine) {
	editor := filepath.Join(t.TempDir(), "editor")
	script := func(text string) {
		if err := os.WriteFile(editor, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("VISUAL", editor)
	script(`echo 'max-lwps = 70' >"$1"`)
	m.Must("config", "edit", "a")
	if got := strings.TrimSpace(m.Must("config", "show", "a", "max-lwps")); got != "70" {
		t.Errorf("edited to %s", got)
	}
	script(`printf 'max-lwps = 71\nautobot = true\n' >"$1"`)
	m.Refused(2, []string{"a.toml:2: autobot: unknown key; did you mean autoboot?"}, "config", "edit", "a")
	if got := strings.TrimSpace(m.Must("config", "show", "a", "max-lwps")); got != "70" {
		t.Errorf("a bad edit left %s", got)
	}
}
