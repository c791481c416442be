package system

import (
	"strings"
	"testing"
	"time"

	"zone/test/machine"
)

// In a pool without room commands say which pool is full, leave nothing half
// made, and work again once there is room.
func TestPoolFull(t *testing.T) {
	m := machine.New(t)
	m.Must("pool", "create", "small", "--size", "320M")
	m.BaseImage()
	m.Must("create", "a")
	m.Must("create", "w", "--set", "root=whole")
	m.Must("boot", "a")
	r := m.Try("exec", "a", "--", "sh", "-c", "cat /dev/zero >/root/fill; sync; for i in $(seq 4000); do head -c 3000 /dev/zero >/root/f$i || break; done; sync")
	if !strings.Contains(r.Stderr, "No space left") {
		t.Fatalf("the pool does not fill: exit code %d\n%s", r.Code, r.Stderr)
	}
	before := m.Snapshot()
	refusedFull := func(args ...string) {
		t.Helper()
		r := m.Try(args...)
		t.Logf("zone %s: %d %s", strings.Join(args, " "), r.Code, strings.TrimSpace(r.Stderr))
		if r.Code != 0 && !strings.Contains(r.Stderr, "pool small is full") {
			t.Errorf("zone %s does not name the full pool: %s", strings.Join(args, " "), r.Stderr)
		}
		if r.Code == 0 {
			t.Errorf("zone %s found room in a full pool", strings.Join(args, " "))
		}
	}
	refusedFull("clone", "w", "c", "--count", "200")
	refusedFull("clone", "a", "d", "--count", "200")
	if got := strings.Join(m.Names(), " "); got != "a w" {
		t.Errorf("zones after commands that failed: %s", got)
	}
	if r := m.Try("boot", "w"); r.Code != 0 && !strings.Contains(r.Stderr, "pool small is full") {
		t.Errorf("boot: exit code %d: %s", r.Code, r.Stderr)
	} else if r.Code == 0 {
		t.Log("boot needs no room")
		m.Must("halt", "w")
	}
	m.Unchanged(before)
	if got := m.Exec("a", "rm -r /root/f*; sync; echo there"); got != "there" {
		t.Errorf("in the zone that filled the pool: %q", got)
	}
	// The file system clears deleted datasets away in the background.
	began := time.Now()
	until(t, 90*time.Second, "room for a clone after making room", func() bool { return m.Try("clone", "w", "c").Code == 0 })
	t.Logf("room again after %s", time.Since(began).Round(time.Second))
	m.Must("clone", "a", "d")
	m.Must("boot", "w", "c", "d")
	m.Must("halt", "--all")
}

// The plain directory backend holds the same life.
func TestDirBackend(t *testing.T) {
	m := machine.New(t)
	m.Must("pool", "create", "tank", "--backend", "dir")
	m.BaseImage()
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) {
			m := m.On(t)
			lifecycle(t, m, root)
			m.Must("create", "src", "--set", "root="+root)
			m.Must("boot", "src")
			m.Exec("src", "echo own >/root/file")
			m.Must("clone", "src", "c")
			m.Must("boot", "c")
			if got := m.Exec("c", "cat /root/file; hostname"); got != "own\nc" {
				t.Errorf("in the clone: %q", got)
			}
			if root == "whole" {
				return // without copy on write each further copy takes seconds
			}
			m.Must("halt", "c")
			m.Must("snapshot", "c@s")
			m.Must("boot", "c")
			m.Exec("c", "rm /root/file")
			m.Must("halt", "c")
			m.Must("rollback", "c@s")
			m.Must("boot", "c")
			if got := m.Exec("c", "cat /root/file"); got != "own" {
				t.Errorf("after the rollback: %q", got)
			}
		})
		m.Clear()
	}
}
