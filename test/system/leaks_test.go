package system

import (
	"testing"
	"time"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

const (
	together = 16 // zones booted and halted at once
	cycles   = 20 // boots and halts of one zone
)

// Booting and halting leaves the host as it was: the same mounts, cgroups,
// links, loop devices and rules, and no process.
func TestNothingLeftByBootAndHalt(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "src")
	m.Must("clone", "src", "z", "--count", "16")
	m.Must("delete", "src", "-F")
	names := m.Names()
	before := m.Snapshot()
	processes := ours(t)

	r := m.Try(append([]string{"boot"}, names...)...)
	if r.Code != 0 {
		t.Fatalf("boot of %d zones: exit code %d\n%s", together, r.Code, r.Stderr)
	}
	booted := time.Now()
	pids := map[int]bool{}
	for _, z := range m.Zones() {
		if z.State != "running" || pids[z.PID] {
			t.Errorf("after boot: %+v", z)
		}
		pids[z.PID] = true
	}
	if len(pids) != together {
		t.Errorf("%d zones run", len(pids))
	}
	up := m.Snapshot()
	if len(up.Mounts) != len(before.Mounts) {
		t.Errorf("running zones are seen in the host's mounts:\n%s", hosttest.Diff(before, up))
	}
	// A zone costs the host a link of its own and the bridge once; a snapshot
	// that does not see these would not see them left either.
	if n := len(up.Links) - len(before.Links); n != together+1 {
		t.Errorf("%d links for %d zones", n, together)
	}
	// Nothing of ours stays beside a zone: one process each, its own.
	if extra := len(ours(t)) - len(processes); extra != 0 {
		t.Errorf("%d processes of zone or its engine stay:\n%v", extra, ours(t))
	}
	h := m.Try("halt", "--all")
	if h.Code != 0 {
		t.Errorf("halt: exit code %d\n%s", h.Code, h.Stderr)
	}
	t.Logf("%d zones: boot %s, halt %s, up for %s", together, r.Took, h.Took, time.Since(booted))
	m.Unchanged(before)

	for range cycles {
		m.Must("boot", "z-001")
		m.Must("halt", "z-001")
	}
	m.Unchanged(before)
	if extra := len(ours(t)) - len(processes); extra != 0 {
		t.Errorf("%d processes more than before:\n%v", extra, ours(t))
	}
}

// ours lists the processes of the program under test and of the engine.
func ours(t *testing.T) []string {
	return hosttest.Snapshot(t, "zone", "runc", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]").Processes
}
