package patch

import (
	"math"
	"strings"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/patch/packages"
)

func TestAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		z    ZoneReport
		want float64
	}{
		{"waited for others", ZoneReport{Wall: 20, CPU: 9, Waited: 8, WaitKnown: true}, 12},
		{"at least its CPU time", ZoneReport{Wall: 20, CPU: 15, Waited: 12, WaitKnown: true}, 15},
		{"at most its wall time", ZoneReport{Wall: 20, CPU: 30, Waited: 0, WaitKnown: true}, 20},
		{"wait not known", ZoneReport{Wall: 20, CPU: 9}, 9},
		{"never begun", ZoneReport{}, 0},
	} {
		if got := c.z.alone(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSum(t *testing.T) {
	rep := &Report{Wall: 12, Shared: 2, Zones: []*ZoneReport{
		{Zone: "a", Result: Patched, Wall: 10, CPU: 6, Waited: 2, WaitKnown: true, Packages: make([]packages.Change, 3)},
		{Zone: "b", Result: RolledBack, Wall: 10, CPU: 6, Waited: 0, WaitKnown: true, Packages: make([]packages.Change, 3)},
		{Zone: "c", Result: UpToDate, Wall: 1, CPU: 1, WaitKnown: true},
	}}
	rep.sum(0.5)
	if rep.Packages != 3 || rep.CPU != 13.5 || rep.Sequential != 21 || math.Abs(rep.SpeedUp-21.0/12) > 1e-9 {
		t.Errorf("%+v", rep)
	}
	if rep.Method != methodKnown || strings.Join(rep.RolledBack, " ") != "b" {
		t.Errorf("method %q, rolled back %v", rep.Method, rep.RolledBack)
	}
	if err := rep.Err(false); !errdefs.Is(err, errdefs.Partial) {
		t.Error(err)
	}
	rep.Zones[0].WaitKnown = false
	if rep.sum(0.5); rep.Method != methodUnknown || rep.Sequential != 2+6+10+1 {
		t.Errorf("without pressure: %v, %q", rep.Sequential, rep.Method)
	}
}

func TestText(t *testing.T) {
	rep := &Report{Run: "20260102-150405-abcd", State: StateFinished, Wall: 8, Request: Request{Jobs: 2}, Zones: []*ZoneReport{
		{Zone: "a", Result: Patched, Strategy: InPlace, Wall: 10, CPU: 6, Waited: 2, WaitKnown: true, Snapshot: "patch-x"},
		{Zone: "b", Result: RolledBack, Strategy: Offline, Wall: 3, WaitKnown: true, Reason: "bad\x1b[2J", Output: []string{"last words"}, Kept: "failed-x"},
	}}
	rep.sum(1)
	var b strings.Builder
	if err := rep.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ZONE  RESULT       STRATEGY", "a     patched      in-place", "b: rolled-back: bad?[2J", "    last words",
		"b@failed-x", "rolled back   b", "times faster", "no second run was made",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
