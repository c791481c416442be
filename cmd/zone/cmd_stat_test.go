package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
	"zone/internal/host/probe"
	"zone/internal/stat"
	"zone/internal/ui"
)

func TestParseInterval(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"5": 5 * time.Second, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond,
	} {
		if got, err := parseInterval(in); err != nil || got != want {
			t.Errorf("%s: %s %v", in, got, err)
		}
	}
	for _, in := range []string{"", "0", "-1", "x", "1e300", "NaN", "9999999", "5 s"} {
		if d, err := parseInterval(in); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("%q: %s %v", in, d, err)
		}
	}
	for _, args := range [][]string{{"1", "0"}, {"1", "-2"}, {"1", "x"}} {
		if err := new(statOptions).parseArgs(args); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, glob := range []string{"", "web["} {
		if err := (&statOptions{zones: []string{glob}}).parseArgs(nil); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("-z %q: %v", glob, err)
		}
	}
}

// fakeZones has no running zones and counts how often it was asked.
type fakeZones struct {
	asked int
	fail  error
}

func (f *fakeZones) StatSources(context.Context) ([]stat.Source, error) {
	f.asked++
	return nil, f.fail
}

func (f *fakeZones) ZoneRunning(_ context.Context, name string) (bool, error) {
	if name == "none" {
		return false, errdefs.New(errdefs.NotFound, "zone none", "no such zone")
	}
	return name != "down", nil
}

func TestWatchStat(t *testing.T) {
	reports := 0
	count := func(rows []stat.Usage, first bool) error {
		reports++
		if len(rows) != 2 || first != (reports == 1) {
			t.Errorf("report %d: first %v, rows %v", reports, first, rows)
		}
		return nil
	}
	if err := watchStat(t.Context(), &fakeZones{}, statOptions{}, count); err != nil || reports != 1 {
		t.Errorf("no interval: %d reports, %v", reports, err)
	}
	reports = 0
	opt := statOptions{interval: 10 * time.Millisecond, count: 3}
	if err := watchStat(t.Context(), &fakeZones{}, opt, count); err != nil || reports != 3 {
		t.Errorf("count 3: %d reports, %v", reports, err)
	}
	failed := errors.New("no pool")
	if err := watchStat(t.Context(), &fakeZones{fail: failed}, opt, count); !errors.Is(err, failed) {
		t.Errorf("failing source: %v", err)
	}
}

func TestWatchStatEndsCleanlyOnInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reports := 0
	err := watchStat(ctx, &fakeZones{}, statOptions{interval: time.Hour}, func([]stat.Usage, bool) error {
		reports++
		cancel()
		return nil
	})
	if err != nil || reports != 1 {
		t.Errorf("%d reports, %v", reports, err)
	}
}

func TestCheckStatZones(t *testing.T) {
	var said strings.Builder
	a := &app{stderr: &said}
	if err := checkStatZones(t.Context(), a, &fakeZones{}, []string{"up", "down", "no*"}); err != nil {
		t.Error(err)
	}
	if got := said.String(); got != "zone: down is not running\n" {
		t.Errorf("said %q", got)
	}
	if err := checkStatZones(t.Context(), a, &fakeZones{}, []string{"none"}); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("unknown zone: %v", err)
	}
}

func statRows() []stat.Usage {
	end := time.Unix(1700000000, 0)
	half, half64, full := 50.0, int64(512<<20), 2.0
	return []stat.Usage{
		{Zone: stat.TotalRow, Time: end, CPU: 1.5, Memory: 3 << 30, Pids: 100},
		{Zone: stat.SystemRow, Time: end, CPU: 0.5},
		{
			Zone: "web1", Time: end, CPU: 1, CPUCap: &full, CPUPercent: &half,
			Memory: 256 << 20, MemoryCap: &half64, MemoryPercent: &half, Pids: 7,
		},
		{Zone: "we:b\x1b[2J", Time: end},
	}
}

func TestStatOutput(t *testing.T) {
	for _, tt := range []struct {
		name string
		opt  statOptions
		want string
	}{
		{
			"chosen columns",
			statOptions{list: ui.ListOptions{Columns: []string{"zone", "cpu", "cpu-cap", "cpu%", "mem", "mem-cap", "mem%"}}},
			"ZONE         CPU  CPU-CAP  CPU%   MEM  MEM-CAP  MEM%\n" +
				"[total]     1.50        -     -    3G        -     -\n" +
				"[system]    0.50        -     -     0        -     -\n" +
				"web1        1.00        2  50.0  256M     512M  50.0\n" +
				"we:b?[2J    0.00        -     -     0        -     -\n",
		},
		{"one zone, names only", statOptions{zones: []string{"web*"}, list: ui.ListOptions{Quiet: true}}, "[total]\n[system]\nweb1\n"},
		{
			"parseable",
			statOptions{parseable: true, zones: []string{"we*"}},
			"1700000000:[total]:1.5000::::::3221225472:::0:::100::\n" +
				"1700000000:[system]:0.5000::::::0:::0:::0::\n" +
				"1700000000:web1:1.0000:2.0000:50.0000::::268435456:536870912:50.0000:0:::7::\n" +
				"1700000000:we\\:b?[2J:0.0000::::::0:::0:::0::\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := tt.opt.print(&b, tt.opt.keep(statRows()), true); err != nil {
				t.Fatal(err)
			}
			got := b.String()
			if strings.HasPrefix(got, "ZONE") { // padding of the first column is the list's own business
				got, tt.want = squeeze(got), squeeze(tt.want)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func squeeze(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestStatColumnsAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range statColumns() {
		if seen[c.Name] {
			t.Errorf("two columns %s", c.Name)
		}
		seen[c.Name] = true
	}
	if err := (statOptions{}).print(io.Discard, nil, true); err != nil {
		t.Error(err)
	}
}

func TestMissingFeatures(t *testing.T) {
	checks := []probe.Check{
		{Name: "runc", Status: probe.Missing, Needed: "running zones", Fix: "install runc", Required: true},
		{Name: "ZFS", Status: probe.Missing, Fix: "install zfs"},
		{Name: "overlayfs", Status: probe.Present, Required: true},
	}
	err := missingFeatures(checks)
	if errdefs.KindOf(err).ExitCode() != 13 || errdefs.HintOf(err) != "install runc" || !strings.Contains(err.Error(), "runc (running zones)") {
		t.Errorf("%v, hint %q", err, errdefs.HintOf(err))
	}
	if err := missingFeatures(checks[1:]); err != nil {
		t.Errorf("only optional ones missing: %v", err)
	}
}
