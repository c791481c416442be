package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/host/hosttest"
)

// Every order of raising and lowering, on the real kernel.
func TestChangeLimitsOnMachine(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	tree, err := Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, tree)
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	const mb = 1 << 20
	for _, want := range []Limits{
		{CPUQuota: 0.5, CPUWeight: 50, Memory: 64 * mb, Swap: 0, Pids: 20},
		{CPUQuota: 1.5, CPUWeight: 200, Memory: 128 * mb, Swap: 64 * mb, Pids: 40}, // all raised
		{CPUQuota: 0.25, CPUWeight: 10, Memory: 32 * mb, Swap: 16 * mb, Pids: 10},  // all lowered
		{CPUQuota: 0.25, CPUWeight: 10, Memory: 96 * mb, Swap: 0, Pids: 10},        // memory above the former sum
		{CPUQuota: 0.01, CPUWeight: 10, Memory: 16 * mb, Swap: 256 * mb, Pids: 10}, // memory down, sum up
		{CPUQuota: 0.01, CPUWeight: 10, Memory: 32 * mb, Swap: -1, Pids: 10},       // no limit of swap
		{CPUWeight: 100, Memory: -1, Swap: -1, Pids: -1},                           // nothing
		{CPUWeight: 100, Memory: 8 * mb, Swap: 0, Pids: 5},
	} {
		have, err := g.ReadLimits()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.ChangeLimits(have, want); err != nil {
			t.Fatalf("from %+v to %+v: %v", have, want, err)
		}
		got, err := g.ReadLimits()
		if err != nil {
			t.Fatal(err)
		}
		if d := got.CPUWeight - want.CPUWeight; d >= -1 && d <= 1 {
			got.CPUWeight = want.CPUWeight
		}
		if got != want {
			t.Errorf("asked %+v, holds %+v", want, got)
		}
	}
}

// fakeV2 is a v2 host with one group, whose control files hold what is given.
func fakeV2(t *testing.T, files map[string]string) (Group, func(string) string) {
	t.Helper()
	root := t.TempDir()
	writeAt(t, filepath.Join(root, "proc/self/mountinfo"), "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	dir := filepath.Join(root, "sys/fs/cgroup/z")
	for name, content := range files {
		writeAt(t, filepath.Join(dir, name), content)
	}
	tree, err := Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree.Group("z"), func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

func TestChangeLimitsV2(t *testing.T) {
	empty := map[string]string{
		"cpu.max": "", "cpu.weight": "", "memory.max": "", "memory.high": "", "memory.swap.max": "", "pids.max": "", "memory.current": "4096\n",
	}
	g, read := fakeV2(t, empty)
	if err := g.ChangeLimits(Limits{Memory: -1, Swap: -1, Pids: -1}, Limits{CPUQuota: 0.5, CPUWeight: 30, Memory: 8192, Swap: 0, Pids: 7}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cpu.max": "50000 100000", "cpu.weight": "30", "memory.max": "8192", "memory.swap.max": "0", "pids.max": "7",
		"memory.high": "max2", // 8192 while the kernel reclaims, then none; a file keeps the rest of what was there
	} {
		if got := read(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	g, read = fakeV2(t, map[string]string{
		"memory.max": "", "memory.high": "", "memory.swap.max": "", "memory.current": "9000\n",
	})
	err := g.ChangeLimits(Limits{Memory: -1, Swap: -1, CPUWeight: 100}, Limits{Memory: 8192, Swap: 0})
	if !errdefs.Is(err, errdefs.Busy) || read("memory.max") != "" || read("memory.swap.max") != "" {
		t.Errorf("more in use than allowed: %v, memory.max %q", err, read("memory.max"))
	}
	err = g.ChangeLimits(Limits{Pids: -1, CPUWeight: 100}, Limits{Pids: 5})
	if !errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(err.Error(), "pids") {
		t.Errorf("no controller: %v", err)
	}
}

// Memory that is in use cannot be taken away; what held goes on to hold.
func TestChangeLimitsInUse(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	tree, err := Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, tree)
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	held := Limits{CPUWeight: 100, Memory: 256 << 20, Swap: 0, Pids: -1}
	have, err := g.ReadLimits()
	if err = errors.Join(err, g.ChangeLimits(have, held)); err != nil {
		t.Fatal(err)
	}
	start(t, g, `exec perl -e '$x = "x" x (100 << 20); sleep 60'`)
	waitFor(t, "the memory is in use", func() bool {
		s, _ := g.ReadStat()
		return s.MemoryAnon > 99<<20
	})
	want := held
	want.Memory = 16 << 20
	if err := g.ChangeLimits(held, want); !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("taking memory that is in use: %v", err)
	}
	got, err := g.ReadLimits()
	if err != nil || got.Memory != held.Memory || got.Swap != held.Swap {
		t.Errorf("holds %+v, %v", got, err)
	}
	if used, err := g.ReadStat(); err != nil || used.MemoryAnon < 99<<20 || used.OOMKills > 0 {
		t.Errorf("the process that used it: %+v, %v", used, err)
	}
}
