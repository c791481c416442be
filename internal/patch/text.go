package patch

import (
	"fmt"
	"io"
	"strings"

	"zone/internal/ui"
)

// Text prints the report for a person.
func (rep *Report) Text(w io.Writer) error {
	cols := []ui.Column[*ZoneReport]{
		{Name: "zone", Value: func(z *ZoneReport) string { return z.Zone }},
		{Name: "result", Value: func(z *ZoneReport) string { return resultOrPhase(z) }},
		{Name: "strategy", Value: func(z *ZoneReport) string { return z.Strategy }},
		{Name: "packages", Right: true, Value: func(z *ZoneReport) string { return fmt.Sprint(len(z.Packages)) }},
		{Name: "wall", Right: true, Value: func(z *ZoneReport) string { return seconds(z.Wall) }},
		{Name: "cpu", Right: true, Value: func(z *ZoneReport) string { return seconds(z.CPU) }},
		{Name: "waited", Right: true, Value: func(z *ZoneReport) string {
			if !z.WaitKnown {
				return "-"
			}
			return seconds(z.Waited)
		}},
		{Name: "downtime", Right: true, Value: func(z *ZoneReport) string { return seconds(z.Downtime) }},
		{Name: "snapshot", Value: func(z *ZoneReport) string { return z.Snapshot }},
	}
	if err := ui.List(w, ui.ListOptions{}, cols, rep.Zones); err != nil {
		return err
	}
	_, err := io.WriteString(w, rep.reasons()+rep.keptBack()+rep.sums())
	return err
}

func resultOrPhase(z *ZoneReport) string {
	if z.Result == "" {
		return z.Phase
	}
	return z.Result
}

// reasons lists the zones that were not patched, each with why and its last
// words.
func (rep *Report) reasons() string {
	var b strings.Builder
	for _, z := range rep.Zones {
		if z.Reason == "" {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s: %s\n", z.Zone, z.Result, ui.Printable(z.Reason))
		for _, line := range z.Output[max(0, len(z.Output)-5):] {
			fmt.Fprintf(&b, "    %s\n", ui.Printable(line))
		}
		if z.Kept != "" {
			fmt.Fprintf(&b, "    as it was when it failed: %s@%s\n", z.Zone, z.Kept)
		}
	}
	return b.String()
}

// keptBack lists the zones in which updates were left out, because they would
// have removed other packages.
func (rep *Report) keptBack() string {
	var b strings.Builder
	for _, z := range rep.Zones {
		if len(z.KeptBack) > 0 {
			fmt.Fprintf(&b, "\n%s: kept back: %s\n", z.Zone, ui.Printable(strings.Join(z.KeptBack, ", ")))
		}
	}
	return b.String()
}

func (rep *Report) sums() string {
	var b strings.Builder
	c := rep.Counts
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-14s%s\n", name, fmt.Sprintf(format, args...))
	}
	b.WriteByte('\n')
	line("run", "%s, %s", rep.Run, rep.State)
	line("zones", "%s", c.text())
	if len(rep.RolledBack) > 0 {
		line("rolled back", "%s", strings.Join(rep.RolledBack, ", "))
	}
	line("packages", "%d", rep.Packages)
	line("fetched", "%s (%d bytes), once for all zones", ui.Bytes(rep.BytesFetched), rep.BytesFetched)
	line("wall", "%s, %d at once on %d CPUs", seconds(rep.Wall), rep.Request.Jobs, rep.CPUs)
	line("cpu", "%s", seconds(rep.CPU))
	if rep.SpeedUp > 0 && rep.Counts.Patched > 0 && !rep.Request.DryRun {
		gain := fmt.Sprintf("it was %.2f times faster", rep.SpeedUp)
		if rep.SpeedUp <= 1 {
			gain = "nothing was gained by doing several at once"
		}
		line("one by one", "%s by this run's own times of each zone, so %s", seconds(rep.Sequential), gain)
		line("", "(an estimate, no second run was made; --json tells how it is reckoned)")
	}
	return b.String()
}

func (c Counts) text() string {
	var parts []string
	for _, p := range []struct {
		n    int
		name string
	}{
		{c.Patched, "patched"},
		{c.UpToDate, "up to date"},
		{c.Pending, "with packages pending"},
		{c.RolledBack, "rolled back"},
		{c.Skipped, "skipped"},
		{c.Failed, "failed"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	return strings.Join(parts, ", ")
}

// PlanText prints what a dry run found.
func (rep *Report) PlanText(w io.Writer) error {
	var b strings.Builder
	for _, z := range rep.Zones {
		switch z.Result {
		case Pending:
			fmt.Fprintf(&b, "%s: %s, %d packages, %s\n", z.Zone, z.Strategy, len(z.Packages), ui.Bytes(z.Download))
		case UpToDate:
			fmt.Fprintf(&b, "%s: up to date\n", z.Zone)
		default:
			fmt.Fprintf(&b, "%s: %s: %s\n", z.Zone, z.Result, ui.Printable(z.Reason))
		}
		for _, p := range z.Packages {
			old := p.Old
			if old == "" {
				old = "(new)"
			}
			fmt.Fprintf(&b, "    %s %s -> %s\n", ui.Printable(p.Name), ui.Printable(old), ui.Printable(p.New))
		}
		if len(z.KeptBack) > 0 {
			fmt.Fprintf(&b, "    kept back: %s\n", ui.Printable(strings.Join(z.KeptBack, ", ")))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Line says in one line how a zone ended.
func (z *ZoneReport) Line() string {
	s := fmt.Sprintf("%s: %s", z.Zone, z.Result)
	switch z.Result {
	case Patched, Pending:
		s += fmt.Sprintf(", %d packages", len(z.Packages))
	}
	if z.Result != Pending {
		s += ", " + seconds(z.Wall)
	}
	if z.Downtime > 0 {
		s += ", down " + seconds(z.Downtime)
	}
	if z.Reason != "" {
		s += ": " + z.Reason
	}
	return ui.Printable(s)
}

func seconds(s float64) string { return fmt.Sprintf("%.1fs", s) }
