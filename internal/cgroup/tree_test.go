package cgroup

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
)

func detect(t *testing.T, name string) Tree {
	t.Helper()
	tree, err := Detect("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestDetect(t *testing.T) {
	for _, tt := range []struct {
		name, layout, unified string
		controllers           []string
		mounts                int
	}{
		{
			"hybrid", LayoutHybrid, "testdata/hybrid/sys/fs/cgroup/unified",
			strings.Fields("blkio cpu cpuacct cpuset devices freezer hugetlb memory pids"), 10,
		},
		{"v2", LayoutV2, "testdata/v2/sys/fs/cgroup", strings.Fields("cpu cpuset hugetlb io memory misc pids rdma"), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := detect(t, tt.name)
			controllers, err := tree.Controllers()
			if err != nil {
				t.Fatal(err)
			}
			if tree.Layout != tt.layout || tree.Unified() != tt.unified || len(tree.mounts) != tt.mounts {
				t.Errorf("layout %s, unified %s, mounts %v", tree.Layout, tree.Unified(), tree.mounts)
			}
			if d := cmp.Diff(tt.controllers, controllers); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseTree(t *testing.T) {
	const joint = "26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
	const named = "27 25 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x/agent,name=systemd\n"
	const v2 = "28 25 0:25 / /sys/fs/cgroup/with\\040space rw - cgroup2 cgroup2 rw\n"
	for _, tt := range []struct {
		name, in, layout string
		mounts           []string
	}{
		{"v1 with joint controllers", joint + named, LayoutV1, []string{"/r/sys/fs/cgroup/cpu,cpuacct", "/r/sys/fs/cgroup/systemd"}},
		{"hybrid", joint + v2, LayoutHybrid, []string{"/r/sys/fs/cgroup/with space", "/r/sys/fs/cgroup/cpu,cpuacct"}},
		{"named hierarchy beside v2", named + v2, LayoutV2, []string{"/r/sys/fs/cgroup/with space", "/r/sys/fs/cgroup/systemd"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, err := parseTree(strings.NewReader(tt.in), "/r")
			if err != nil {
				t.Fatal(err)
			}
			if tree.Layout != tt.layout {
				t.Errorf("layout %s, want %s", tree.Layout, tt.layout)
			}
			if d := cmp.Diff(tt.mounts, tree.mounts); d != "" {
				t.Error(d)
			}
		})
	}
	_, err := parseTree(strings.NewReader("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"), "/")
	if !errdefs.Is(err, errdefs.NotSupported) {
		t.Errorf("no cgroups: %v", err)
	}
}

func TestFixtureProcs(t *testing.T) {
	for name, want := range map[string][]int{
		"hybrid": {101, 102, 103}, // 103 is in a v1 hierarchy only
		"v2":     {4012, 4100, 4101},
	} {
		g := detect(t, name).Group("zone/web1")
		pids, err := g.Procs()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, pids); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if populated, err := g.Populated(); !populated || err != nil {
			t.Errorf("%s: populated %v, %v", name, populated, err)
		}
	}
}

func TestFixtureLimits(t *testing.T) {
	for name, want := range map[string]Limits{
		"hybrid": {CPUQuota: 0.5, CPUWeight: 200, Memory: 256 << 20, Swap: 128 << 20, Pids: 64},
		"v2":     {CPUQuota: 1.5, CPUWeight: 200, Memory: 512 << 20, Swap: 0, Pids: -1},
	} {
		got, err := detect(t, name).Group("/zone/web1").ReadLimits()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestFixtureStat(t *testing.T) {
	us := time.Microsecond
	for name, want := range map[string]Stat{
		"hybrid": {
			CPU: 1020213 * us, User: 1005315 * us, System: 14898 * us,
			Throttled: 995276648, Periods: 23, ThrottledPeriods: 20,
			Memory: 9306112 - 8527872, MemoryTotal: 9306112, MemoryFile: 8695808, MemoryAnon: 114688, Pids: 1,
			CPUPressure: 992156 * us, IOPressure: 527 * us,
		},
		"v2": {
			CPU: 8123456 * us, User: 6000123 * us, System: 2123333 * us,
			Throttled: 1834221 * us, Periods: 412, ThrottledPeriods: 37,
			Memory: 96 << 20, MemoryTotal: 128 << 20, MemoryFile: 80 << 20, MemoryAnon: 40 << 20, Swap: 4096,
			Pids: 23, OOMKills: 1, CPUPressure: 400123 * us, IOPressure: 95 * us,
		},
	} {
		got, err := detect(t, name).Group("zone/web1").ReadStat()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestMissingGroup(t *testing.T) {
	for _, name := range []string{"hybrid", "v2"} {
		g := detect(t, name).Group("zone/none")
		if _, err := g.ReadStat(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat: %v", err)
		}
		if _, err := g.ReadLimits(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("limits: %v", err)
		}
		if pids, err := g.Procs(); len(pids) > 0 || err != nil {
			t.Errorf("procs: %v %v", pids, err)
		}
		if populated, err := g.Populated(); populated || err != nil {
			t.Errorf("populated: %v %v", populated, err)
		}
		if g.Exists() || g.ID() != 0 || g.Frozen() {
			t.Error("exists")
		}
		if err := errors.Join(g.Kill(t.Context()), g.Remove(), g.Thaw()); err != nil {
			t.Error(err)
		}
	}
}

func TestRootIsRefused(t *testing.T) {
	for _, name := range []string{"", "/", "..", "/zone/.."} {
		g := detect(t, "v2").Group(name)
		if g.Kill(t.Context()) == nil || g.Remove() == nil || g.Freeze(t.Context()) == nil {
			t.Errorf("%q: the root was not refused", name)
		}
	}
}
