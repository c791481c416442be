package guest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zone/test/machine"
)

func bootsAtOnce(t *testing.T, m *machine.Machine) {
	m.Must("create", "a", "--image", "base", "--set", "max-lwps=50")
	m.Must("clone", "a", "b", "c", "d")
	var wait sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		wait.Go(func() {
			if out, err := m.Command(t.Context(), "boot", name).CombinedOutput(); err != nil {
				t.Errorf("boot %s beside others: %v\n%s", name, err, out)
			}
		})
	}
	wait.Wait()
	addresses := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		z := m.Expect(name, "running")
		expectGroup(t, group(t, z.PID), "pids.max 50")
		addresses[z.Address] = true
	}
	if len(addresses) != 4 {
		t.Errorf("addresses of four zones: %v", addresses)
	}
	m.Must("halt", "--all")
}

// killedBoot cuts a boot off at several points; the next command mends it.
func killedBoot(t *testing.T, m *machine.Machine) {
	m.Must("create", "a", "--image", "base", "--set", "capped-memory=64M")
	before := m.Snapshot()
	m.Must("boot", "a") // the first makes host keys and takes longer
	m.Must("halt", "a")
	whole := m.Try("boot", "a").Took
	m.Must("halt", "a")
	for _, part := range []time.Duration{3, 5, 6, 7, 8, 9} {
		ctx, cancel := context.WithTimeout(t.Context(), whole*part/10)
		c := m.Command(ctx, "boot", "a")
		err := c.Run()
		cancel()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		r := m.Try("list", "-c")
		state := m.Zones()["a"].State
		t.Logf("killed after %s of %s: %s; %s", whole*part/10, whole, state, strings.TrimSpace(r.Stderr))
		if state != "installed" && state != "running" {
			t.Errorf("the zone is %s", state)
		}
		if state == "installed" {
			m.Unchanged(before)
			m.Must("boot", "a")
		}
		m.Must("halt", "a")
	}
	m.Unchanged(before)
}

// systemdZone runs systemd below systemd. The zone's own may use all
// controllers below its cgroup, and lift no limit of it.
func systemdZone(t *testing.T, m *machine.Machine) {
	m.Must("create", "sys", "--image", "systemd", "--set", "capped-memory=256M", "--set", "max-lwps=200")
	before := m.Snapshot()
	m.Must("boot", "sys")
	state := ""
	until(t, 2*time.Minute, "systemd's start", func() bool {
		state = strings.TrimSpace(m.Try("exec", "sys", "--", "systemctl", "is-system-running").Stdout)
		return state == "running" || state == "degraded"
	})
	if state == "degraded" {
		t.Errorf("failed units:\n%s", m.Exec("sys", "systemctl --failed --plain --no-legend"))
	}
	dir := filepath.Dir(group(t, m.Zones()["sys"].PID)) // it moves itself to init.scope
	expectGroup(t, dir, "memory.max 268435456", "pids.max 200")
	if r := m.Try("exec", "sys", "--", "sh", "-c", "echo max >/sys/fs/cgroup/memory.max"); r.Code == 0 {
		t.Error("the zone may lift its memory limit")
	}
	expectGroup(t, dir, "memory.max 268435456")
	got := m.Exec("sys", `systemd-run --quiet --pipe --wait -p MemoryMax=32M -p TasksMax=7 sh -c 'cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && cat memory.max pids.max'`)
	if got != "33554432\n7" {
		t.Errorf("a service with limits inside has %q", got)
	}
	r := m.Try("shutdown", "sys")
	if r.Code != 0 || strings.Contains(r.Stderr, "halting it") {
		t.Errorf("shutdown: exit code %d after %s\n%s", r.Code, r.Took, r.Stderr)
	}
	m.Expect("sys", "installed")
	m.Unchanged(before)
}

// holders starts a service with a copy of the host's mounts of its own while a
// zone runs. On hosts where pools are mounted in plain sight such a copy keeps
// them busy long after.
func holders(t *testing.T, m *machine.Machine) {
	m.Must("create", "a", "--image", "base")
	m.Must("boot", "a")
	host(t, "systemd-run", "--quiet", "--unit=holder", "-p", "PrivateTmp=yes", "-p", "PrivateMounts=yes", "sleep", "600")
	t.Cleanup(func() { host(t, "systemctl", "stop", "holder") })
	m.Must("delete", "a", "-F")
	m.Must("pool", "destroy", "tank", "-F")
	if _, err := os.Stat(filepath.Join(m.Home, "pools", "tank.img")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pool's file after destroy: %v", err)
	}
}
