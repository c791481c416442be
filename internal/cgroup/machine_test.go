package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host/hosttest"
)

// machineTrees returns this machine's control groups, and on a hybrid host
// also its two halves as if each were alone, so that v1 and v2 are both tested
// on a real kernel.
func machineTrees(t *testing.T) map[string]Tree {
	t.Helper()
	hosttest.Require(t, hosttest.Root)
	tree, err := Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	trees := map[string]Tree{tree.Layout: tree}
	if tree.Layout != LayoutHybrid {
		return trees
	}
	for layout, fsType := range map[string]string{LayoutV1: "cgroup", LayoutV2: "cgroup2"} {
		root := t.TempDir()
		var lines []string
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, " - "+fsType+" ") {
				lines = append(lines, line)
			}
		}
		writeAt(t, filepath.Join(root, "proc/self/mountinfo"), strings.Join(lines, ""))
		for _, m := range tree.mounts {
			link := filepath.Join(root, m)
			if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(m, link)); err != nil {
				t.Fatal(err)
			}
		}
		if trees[layout], err = Detect(root); err != nil || trees[layout].Layout != layout {
			t.Fatalf("layout %s, want %s: %v", trees[layout].Layout, layout, err)
		}
	}
	return trees
}

func writeAt(t *testing.T, file, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err = errors.Join(err, os.WriteFile(file, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func newGroup(t *testing.T, tree Tree) Group {
	t.Helper()
	name := fmt.Sprintf("zone-test-%d-%s", os.Getpid(), tree.Layout)
	t.Cleanup(func() {
		all, err := Detect("/")
		if err = errors.Join(err, all.Group(name).Kill(context.Background()), all.Group(name).Remove()); err != nil {
			t.Error(err)
		}
	})
	g := tree.Group(name + "/web1")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	return g
}

// start runs a shell script in the group.
func start(t *testing.T, g Group, script string) {
	t.Helper()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "read go; " + script}, &os.ProcAttr{
		Files: []*os.File{pipeThatSaysGo(t, g)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	go p.Wait() //nolint:errcheck // only so that it does not stay a zombie
	if err := g.Join(p.Pid); err != nil {
		t.Fatal(err)
	}
}

// pipeThatSaysGo lets the script start once it is in the group.
func pipeThatSaysGo(t *testing.T, g Group) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	go func() {
		defer w.Close()
		for range 1000 {
			if populated, _ := g.Populated(); populated {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Fprintln(w, "go")
	}()
	return r
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func TestMachineLifecycle(t *testing.T) {
	for name, tree := range machineTrees(t) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tree)
			first := g.ID()
			if populated, err := g.Populated(); populated || err != nil || !g.Exists() || first == 0 {
				t.Fatalf("new group: populated %v, %v, id %d", populated, err, first)
			}
			sub := tree.Group(g.Path() + "/sub/deeper")
			if err := sub.Create(); err != nil {
				t.Fatal(err)
			}
			start(t, sub, "sleep 100 & sleep 100 & wait")
			waitFor(t, "three processes", func() bool { p, err := g.Procs(); return err == nil && len(p) == 3 })

			if err := g.Remove(); !errdefs.Is(err, errdefs.Busy) {
				t.Errorf("remove with processes: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := g.Kill(ctx); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Procs(); len(pids) > 0 || err != nil {
				t.Errorf("left after kill: %v %v", pids, err)
			}
			if err := g.Remove(); err != nil || g.Exists() {
				t.Fatalf("remove: %v, exists %v", err, g.Exists())
			}
			if err := g.Create(); err != nil || g.ID() == first {
				t.Errorf("made again: %v, same id %v", err, g.ID() == first)
			}
		})
	}
}

// A group that forks all the time, and one that is frozen, must end as well.
func TestMachineKillForkingAndFrozen(t *testing.T) {
	for name, tree := range machineTrees(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			g := newGroup(t, tree)
			start(t, g, "while :; do sleep 100 & (sleep 0.01); done")
			waitFor(t, "some forks", func() bool { p, err := g.Procs(); return err == nil && len(p) > 5 })

			if err := g.Freeze(ctx); err != nil || !g.Frozen() {
				t.Fatalf("freeze: %v, frozen %v", err, g.Frozen())
			}
			before, _ := g.Procs()
			time.Sleep(50 * time.Millisecond)
			if after, _ := g.Procs(); !slices.Equal(before, after) {
				t.Errorf("changed while frozen: %v, %v", before, after)
			}
			if err := g.Thaw(); err != nil || g.Frozen() {
				t.Fatalf("thaw: %v, frozen %v", err, g.Frozen())
			}
			waitFor(t, "forks after thaw", func() bool { p, _ := g.Procs(); return len(p) > len(before) })
			if err := g.Freeze(ctx); err != nil {
				t.Fatal(err)
			}
			if err := g.Kill(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestMachineReadBack(t *testing.T) {
	tree := machineTrees(t)[LayoutHybrid]
	if tree.Layout == "" {
		hosttest.Skip(t, "sets v1 files by hand: needs a hybrid host")
	}
	g := newGroup(t, tree)
	got, err := g.ReadLimits()
	if want := (Limits{CPUWeight: 100, Memory: -1, Swap: -1, Pids: -1}); err != nil || got != want {
		t.Errorf("defaults: %+v, %v", got, err)
	}
	for controller, line := range map[string]string{"memory": "memory.limit_in_bytes 67108864", "pids": "pids.max 33", "cpu": "cpu.cfs_quota_us 25000"} {
		file, value, _ := strings.Cut(line, " ")
		if err := writeFile(filepath.Join(g.controller(controller), file), value); err != nil {
			t.Fatal(err)
		}
	}
	got, err = g.ReadLimits()
	if want := (Limits{CPUQuota: 0.25, CPUWeight: 100, Memory: 64 << 20, Swap: -1, Pids: 33}); err != nil || got != want {
		t.Errorf("set: %+v, %v", got, err)
	}
	start(t, g, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 100")
	waitFor(t, "CPU time, memory and a task", func() bool {
		s, err := g.ReadStat()
		return err == nil && s.CPU > time.Millisecond && s.MemoryTotal > 0 && s.Pids > 0 && s.CPUPressure >= 0
	})
}

func BenchmarkReadStat(b *testing.B) {
	tree, err := Detect("/")
	if err != nil {
		b.Skip(err)
	}
	g := tree.Group(fmt.Sprintf("zone-bench-%d", os.Getpid()))
	if err := g.Create(); err != nil {
		b.Skip(err)
	}
	defer g.Remove() //nolint:errcheck // a benchmark
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.ReadStat(); err != nil {
			b.Fatal(err)
		}
	}
}
