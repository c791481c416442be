package stat

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zone/internal/cgroup"
	"zone/internal/host/hosttest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func machine(seconds, busy float64) Host {
	return Host{
		At: at(seconds), CPUs: 4, CPU: time.Duration(busy * float64(time.Second)),
		MemorySize: 8 << 30, MemoryUsed: 2 << 30, SwapSize: 0, Tasks: 300, TasksMax: 32768,
	}
}

func reading(name string, id uint64, seconds, cpu float64) Reading {
	return Reading{Name: name, ID: id, At: at(seconds), Use: cgroup.Stat{
		CPU: time.Duration(cpu * float64(time.Second)), Memory: 100 << 20, Pids: 10,
	}}
}

// row is the part of a Usage that most cases are about.
type row struct {
	Zone string
	CPU  float64
}

func rows(us []Usage) []row {
	var out []row
	for _, u := range us {
		out = append(out, row{u.Zone, math.Round(u.CPU*1000) / 1000})
	}
	return out
}

func TestRatesOverZonesThatComeAndGo(t *testing.T) {
	for _, tt := range []struct {
		name      string
		prev, cur Sample
		want      []row
	}{
		{
			"none",
			Sample{Host: machine(0, 10)},
			Sample{Host: machine(2, 13)},
			[]row{{"[total]", 1.5}, {"[system]", 1.5}},
		},
		{
			"two, by name, each by its own time",
			Sample{machine(0, 10), []Reading{reading("web2", 2, 0, 5), reading("web1", 1, 0, 7)}},
			Sample{machine(1, 12), []Reading{reading("web2", 2, 1, 5.5), reading("web1", 1, 2, 8)}},
			[]row{{"[total]", 2}, {"[system]", 1}, {"web1", 0.5}, {"web2", 0.5}},
		},
		{
			"appears: counted from its start",
			Sample{Host: machine(0, 10)},
			Sample{machine(2, 12), []Reading{reading("new", 9, 2, 1)}},
			[]row{{"[total]", 1}, {"[system]", 0.5}, {"new", 0.5}},
		},
		{
			"vanishes: falls to the system",
			Sample{machine(0, 10), []Reading{reading("old", 9, 0, 50)}},
			Sample{Host: machine(1, 12)},
			[]row{{"[total]", 2}, {"[system]", 2}},
		},
		{
			"rebooted: another id",
			Sample{machine(0, 10), []Reading{reading("web", 1, 0, 5)}},
			Sample{machine(1, 11), []Reading{reading("web", 2, 1, 0.25)}},
			[]row{{"[total]", 1}, {"[system]", 0.75}, {"web", 0.25}},
		},
		{
			"rebooted long ago by its counter, with the old id",
			Sample{machine(0, 10), []Reading{reading("web", 1, 0, 5)}},
			Sample{machine(1, 11), []Reading{reading("web", 1, 1, 0.25)}},
			[]row{{"[total]", 1}, {"[system]", 0.75}, {"web", 0.25}},
		},
		{
			"another zone took the id",
			Sample{machine(0, 10), []Reading{reading("a", 1, 0, 0.5)}},
			Sample{machine(1, 12), []Reading{reading("b", 1, 1, 1)}},
			[]row{{"[total]", 2}, {"[system]", 1}, {"b", 1}},
		},
		{
			"zones sum up to more than the host's ticks",
			Sample{machine(0, 10), []Reading{reading("a", 1, 0, 0)}},
			Sample{machine(1, 10.9), []Reading{reading("a", 1, 1, 1)}},
			[]row{{"[total]", 1}, {"[system]", 0}, {"a", 1}},
		},
		{
			"a new zone that was missed before: never above the host",
			Sample{Host: machine(0, 10)},
			Sample{machine(1, 12), []Reading{reading("a", 1, 1, 1000)}},
			[]row{{"[total]", 4}, {"[system]", 0}, {"a", 4}},
		},
		{
			"no time went by, host counter went back",
			Sample{machine(1, 10), []Reading{reading("a", 1, 1, 1)}},
			Sample{machine(1, 9), []Reading{reading("a", 1, 1, 2)}},
			[]row{{"[total]", 0}, {"[system]", 0}, {"a", 0}},
		},
		{
			"hostile names",
			Sample{Host: machine(0, 10)},
			Sample{machine(1, 11), []Reading{reading("[total]", 1, 1, 0), reading("", 2, 1, 0), reading("a\x1b[2J\n", 3, 1, 0)}},
			[]row{{"[total]", 1}, {"[system]", 1}, {"", 0}, {"[total]", 0}, {"a\x1b[2J\n", 0}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, rows(Rates(tt.prev, tt.cur))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRatesAgainstCapsAndShares(t *testing.T) {
	a0, a1 := reading("a", 1, 0, 0), reading("a", 1, 1, 0.5)
	a1.Caps = Caps{CPU: 2, Shares: 300, Memory: 400 << 20, Swap: 64 << 20, Pids: 40}
	a1.Use.Periods, a1.Use.ThrottledPeriods, a1.Use.Swap = 10, 4, 16<<20
	b0, b1 := reading("b", 2, 0, 0), reading("b", 2, 1, 1.5)
	b1.Caps = Caps{Shares: 100, Swap: 0}
	c0, c1 := reading("c", 3, 0, 0), reading("c", 3, 1, 0)
	c1.Caps = Caps{Swap: -1}
	got := Rates(
		Sample{machine(0, 0), []Reading{a0, b0, c0}},
		Sample{machine(1, 2.5), []Reading{a1, b1, c1}},
	)
	base := Usage{Time: at(1), Interval: 1, Memory: 100 << 20, Pids: 10}
	a, b, c := base, base, base
	a.Zone, a.CPU, a.CPUCap, a.CPUPercent = "a", 0.5, ptr(2.0), ptr(25.0)
	a.Shares, a.SharePercent, a.Throttled = ptr(int64(300)), ptr(0.5/3*100), ptr(40.0)
	a.MemoryCap, a.MemoryPercent = ptr(int64(400<<20)), ptr(25.0)
	a.Swap, a.SwapCap, a.SwapPercent = 16<<20, ptr(int64(64<<20)), ptr(25.0)
	a.PidsCap, a.PidsPercent = ptr(int64(40)), ptr(25.0)
	b.Zone, b.CPU, b.Shares, b.SharePercent = "b", 1.5, ptr(int64(100)), ptr(150.0)
	b.SwapCap = ptr(int64(0))
	c.Zone = "c"
	total := Usage{
		Zone: TotalRow, Time: at(1), Interval: 1, CPU: 2.5, CPUCap: ptr(4.0), CPUPercent: ptr(62.5),
		Memory: 2 << 30, MemoryCap: ptr(int64(8 << 30)), MemoryPercent: ptr(25.0), SwapCap: ptr(int64(0)),
		Pids: 300, PidsCap: ptr(int64(32768)), PidsPercent: ptr(300.0 / 32768 * 100),
	}
	system := Usage{Zone: SystemRow, Time: at(1), Interval: 1, CPU: 0.5, Memory: 2<<30 - 300<<20, Pids: 270}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if d := cmp.Diff([]Usage{total, system, a, b, c}, got, near); d != "" {
		t.Error(d)
	}
}

func ptr[T any](v T) *T { return &v }

func TestParseHost(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"stat": "cpu  100 10 50 9999 77 3 7 1000 20 0\ncpu0 50 5 25 1 1 1 1 1 1 1\ncpu1 50 5 25 1 1 1 1 1 1 1\nintr 5\n",
		"meminfo": "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:   12000 kB\n" +
			"SwapTotal:  2000 kB\nSwapFree:  1500 kB\nHugePages_Total: 0\n",
		"loadavg":                "0.10 0.20 0.30 2/345 6789\n",
		"sys/kernel/pid_max":     "4194304\n",
		"sys/kernel/threads-max": "100000\n",
	} {
		file := filepath.Join(root, "proc", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := Sampler{Root: root, Now: func() time.Time { return start }}
	got, err := s.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Host{
		At: start, CPUs: 2, CPU: 1700 * time.Millisecond, MemorySize: 16000 << 10, MemoryUsed: 4000 << 10,
		SwapSize: 2000 << 10, SwapUsed: 500 << 10, Tasks: 345, TasksMax: 100000,
	}
	if d := cmp.Diff(want, got.Host); d != "" {
		t.Error(d)
	}
}

func TestParseHostRefusesGarbage(t *testing.T) {
	var h Host
	for _, s := range []string{"", "cpu 1\n", "cpu  a b c d e f g h\ncpu0 1\n"} {
		if h.parseStat(s) == nil {
			t.Errorf("stat %q was taken", s)
		}
	}
	if h.parseMeminfo("MemFree: 5 kB\n") == nil || h.parseLoadavg("1 2 3") == nil || h.parseTasksMax("max") == nil {
		t.Error("garbage was taken")
	}
}

// The use of a real busy group arrives in its row.
func TestSamplerSeesWork(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	tree, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g := tree.Group(fmt.Sprintf("zone-stat-work-%d", os.Getpid()))
	t.Cleanup(func() {
		if err := errors.Join(g.Kill(context.Background()), g.Remove()); err != nil {
			t.Error(err)
		}
	})
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "while :; do :; done"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait() })
	if err := g.Join(p.Pid); err != nil {
		t.Fatal(err)
	}
	sources := []Source{{Name: "busy", Group: g, Caps: Caps{CPU: 2, Swap: -1}}}
	prev, err := Sampler{Root: "/"}.Read(sources)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	cur, err := Sampler{Root: "/"}.Read(sources)
	if err != nil {
		t.Fatal(err)
	}
	us := Rates(prev, cur)
	if u := us[len(us)-1]; u.Zone != "busy" || u.CPU <= 0.02 || u.CPU > 1.2 || u.CPUPercent == nil || u.Pids != 1 {
		t.Errorf("%+v", u)
	}
}

// Groups made, removed and made again while sampling: no error, no negative.
func TestSamplerUnderChurn(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	tree, err := cgroup.Detect("/")
	if err != nil {
		t.Fatal(err)
	}
	g := tree.Group(fmt.Sprintf("zone-stat-test-%d/web", os.Getpid()))
	t.Cleanup(func() {
		if err := tree.Group(filepath.Dir(g.Path())).Remove(); err != nil {
			t.Error(err)
		}
	})
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 40 && err == nil; i++ {
			if err = g.Create(); err == nil {
				err = g.Remove()
			}
		}
		done <- err
	}()
	var prev Sample
	for {
		cur, err := Sampler{Root: "/"}.Read([]Source{{Name: "web", Group: g}})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range Rates(prev, cur) {
			if u.CPU < 0 || u.CPU > float64(cur.Host.CPUs) || u.Memory < 0 {
				t.Errorf("%+v", u)
			}
		}
		prev = cur
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}
