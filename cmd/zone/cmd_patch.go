package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/patch"
	"zone/internal/patch/packages"
	"zone/internal/ui"
	"zone/internal/zone"
)

// patchFlags are the flags of zone patch as they are typed.
type patchFlags struct {
	all, global, dryRun   bool
	group, jobs, strategy string
	health, resume        string
	maxUnavailable        int
	lockWait, idle        time.Duration
	options               packages.Options
}

func newPatchCommand(a *app) *cobra.Command {
	var f patchFlags
	c := &cobra.Command{
		Use:   "patch [NAME...|--all]",
		Short: "bring the packages of many zones up to date at once",
		Long: "Upgrades the packages of zones in parallel. Lists and packages are fetched once for\n" +
			"all of them. Each zone is snapshot first, patched inside its own limits, verified, and\n" +
			"rolled back when anything fails; the others go on. Exit status 3 means that some zones\n" +
			"were not patched.",
		Example: "  zone patch --all --jobs auto\n  zone patch 'web*' --health 'curl -fsS localhost'\n" +
			"  zone patch --all --security-only --dry-run\n  zone patch rollback RUN web1",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.patch(cmd.Context(), cmd, f, args) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.all, "all", false, "every zone")
	fl.StringVar(&f.jobs, "jobs", "auto", "zones worked on at once: a number, or auto for one per CPU")
	fl.StringVar(&f.strategy, "strategy", patch.Auto, "auto (in-place for running zones, offline for halted ones), in-place or offline")
	fl.StringVar(&f.health, "health", "", "shell command, run in each running zone before and after: what fails after is rolled back")
	fl.BoolVar(&f.dryRun, "dry-run", false, "say what would be done, change nothing")
	fl.StringVar(&f.resume, "resume", "", "repeat this run for the zones it did not patch")
	fl.BoolVar(&f.options.SecurityOnly, "security-only", false, "only packages from a security archive")
	fl.StringSliceVar(&f.options.Exclude, "exclude", nil, "leave this package alone (globs allowed, repeatable)")
	fl.DurationVar(&f.lockWait, "lock-wait", time.Minute, "how long to wait for a package manager at work in a zone")
	fl.DurationVar(&f.idle, "idle-timeout", 15*time.Minute, "give a zone up when its package manager says nothing for so long")
	fl.BoolVar(&f.global, "global", false, "the host itself (comes in a later version)")
	fl.StringVar(&f.group, "group", "", "the zones of a group (comes in a later version)")
	fl.IntVar(&f.maxUnavailable, "max-unavailable", 0, "how many zones may be down at once")
	c.AddCommand(newPatchListCommand(a), newPatchShowCommand(a), newPatchRollbackCommand(a))
	return c
}

// request turns flags into what the engine takes.
func (f patchFlags) request(cmd *cobra.Command) (patch.Request, error) {
	q := patch.Request{
		Strategy: f.strategy, Options: f.options, Health: f.health, DryRun: f.dryRun, LockWait: f.lockWait, Idle: f.idle,
	}
	for _, later := range []string{"global", "group"} {
		if cmd.Flags().Changed(later) {
			return q, errdefs.New(errdefs.NotSupported, "patch --"+later, "comes in a later version").
				WithHint("name the zones, or use --all")
		}
	}
	if f.jobs != "auto" {
		n, err := strconv.Atoi(f.jobs)
		if err != nil || n < 1 {
			return q, errdefs.New(errdefs.Usage, "--jobs "+f.jobs, "not a number of zones; allowed: auto, or 1 and up")
		}
		q.Jobs = n
	}
	if cmd.Flags().Changed("max-unavailable") {
		if f.maxUnavailable < 1 {
			return q, errdefs.New(errdefs.Usage, "--max-unavailable", "%d is not a number of zones; allowed: 1 and up", f.maxUnavailable)
		}
		// Until zones have groups, all of them are one: as many as are worked
		// on at once may be down at once.
		if q.Jobs == 0 || q.Jobs > f.maxUnavailable {
			q.Jobs = f.maxUnavailable
		}
	}
	for name, d := range map[string]time.Duration{"lock-wait": f.lockWait, "idle-timeout": f.idle} {
		if d <= 0 {
			return q, errdefs.New(errdefs.Usage, "--"+name, "%s is not a time to wait; allowed: more than 0s", d)
		}
	}
	return q, nil
}

func (a *app) patch(ctx context.Context, cmd *cobra.Command, f patchFlags, args []string) error {
	q, err := f.request(cmd)
	if err != nil {
		return err
	}
	switch {
	case f.resume != "" && (f.all || len(args) > 0):
		return errdefs.New(errdefs.Usage, "patch --resume", "a resumed run has its own list of zones")
	case f.resume == "" && !f.all && len(args) == 0:
		return errdefs.New(errdefs.Usage, "patch", "no zone named").WithHint("zone patch --all")
	case f.all && len(args) > 0:
		return errdefs.New(errdefs.Usage, "patch --all", "either names or --all, not both")
	}
	s, err := a.zones(ctx)
	if err != nil {
		return err
	}
	e := a.patchEngine(s)
	if f.resume == "" {
		if q.Zones, err = s.Select(ctx, args, f.all); err != nil {
			return err
		}
		if len(q.Zones) == 0 {
			return errdefs.New(errdefs.NotFound, "patch --all", "there are no zones").WithHint("zone create NAME")
		}
	}
	p := a.progress()
	e.Note = a.patchNote(p)
	var rep *patch.Report
	if f.resume != "" {
		rep, err = e.Resume(ctx, f.resume, func(old *patch.Request) { overlay(cmd, old, q) })
	} else {
		rep, err = e.Run(ctx, q)
	}
	p.Done()
	if rep != nil {
		if printErr := a.printPatch(rep); printErr != nil {
			return printErr
		}
	}
	return err
}

// overlay lets the flags that were given anew win over those of the old run.
func overlay(cmd *cobra.Command, old *patch.Request, q patch.Request) {
	set := func(flag string, f func()) {
		if cmd.Flags().Changed(flag) {
			f()
		}
	}
	set("strategy", func() { old.Strategy = q.Strategy })
	set("health", func() { old.Health = q.Health })
	set("security-only", func() { old.Options.SecurityOnly = q.Options.SecurityOnly })
	set("exclude", func() { old.Options.Exclude = q.Options.Exclude })
	old.Jobs, old.DryRun, old.LockWait, old.Idle = q.Jobs, q.DryRun, q.LockWait, q.Idle
}

// patchEngine returns the engine over the zones of this home.
func (a *app) patchEngine(s *zone.Service) *patch.Engine {
	return &patch.Engine{
		Zones: patchZones(s), Drivers: []packages.Driver{packages.Apt{}}, Dir: filepath.Join(a.home, "patch"),
	}
}

// patchNote shows a run while it goes on: a line for each zone that ends and a
// status, or with --format jsonl every event on standard output.
func (a *app) patchNote(p ui.Progress) func(patch.Event) {
	if a.format == ui.FormatJSONL {
		out := json.NewEncoder(a.stdout)
		return func(ev patch.Event) { _ = out.Encode(ev) }
	}
	phase, counts := "", ""
	return func(ev patch.Event) {
		switch {
		case ev.End != nil:
			p.Line("%s", ev.End.Line())
		case ev.Type == "phase":
			phase, counts = ev.Phase, ""
			if ev.Of > 0 {
				counts = fmt.Sprintf(" %d/%d", ev.Through, ev.Of)
			}
			p.Status("%s%s", phase, counts)
		case ev.Type == "zone" && ev.Phase != "":
			p.Status("%s%s  %s: %s", phase, counts, ev.Zone, ev.Phase)
		}
	}
}

// printPatch prints a report in the chosen format. With jsonl the report was
// the last event.
func (a *app) printPatch(rep *patch.Report) error {
	switch {
	case a.format == ui.FormatJSON:
		return ui.JSON(a.stdout, rep)
	case a.format == ui.FormatJSONL:
		return nil
	case rep.Request.DryRun:
		return rep.PlanText(a.stdout)
	}
	return rep.Text(a.stdout)
}

func newPatchListCommand(a *app) *cobra.Command {
	o := ui.ListOptions{Key: "runs"}
	c := &cobra.Command{
		Use: "list", Short: "list patch runs, oldest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runs, err := (&patch.Engine{Dir: filepath.Join(a.home, "patch")}).List()
			if err != nil {
				return err
			}
			o.Format = a.format
			return ui.List(a.stdout, o, patchColumns(), runs)
		},
	}
	c.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "names only")
	c.Flags().StringSliceVar(&o.Columns, "columns", nil, "columns to show")
	return c
}

func patchColumns() []ui.Column[*patch.Report] {
	type col = ui.Column[*patch.Report]
	num := func(f func(*patch.Report) int) func(*patch.Report) string {
		return func(r *patch.Report) string { return strconv.Itoa(f(r)) }
	}
	return []col{
		{Name: "run", Value: func(r *patch.Report) string { return r.Run }},
		{Name: "state", Value: func(r *patch.Report) string { return r.State }},
		{Name: "started", Value: func(r *patch.Report) string { return r.Started.Local().Format("2006-01-02 15:04:05") }},
		{Name: "zones", Right: true, Value: num(func(r *patch.Report) int { return len(r.Zones) })},
		{Name: "patched", Right: true, Value: num(func(r *patch.Report) int { return r.Counts.Patched })},
		{Name: "rolled-back", Right: true, Value: num(func(r *patch.Report) int { return r.Counts.RolledBack })},
		{Name: "failed", Right: true, Value: num(func(r *patch.Report) int { return r.Counts.Failed + r.Counts.Skipped })},
		{Name: "packages", Right: true, Value: num(func(r *patch.Report) int { return r.Packages })},
		{Name: "wall", Right: true, Value: func(r *patch.Report) string { return fmt.Sprintf("%.1fs", r.Wall) }},
	}
}

func newPatchShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Short: "show the report of a patch run", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rep, err := (&patch.Engine{Dir: filepath.Join(a.home, "patch")}).Show(args[0])
			if err != nil {
				return err
			}
			if a.format == ui.FormatJSONL {
				return json.NewEncoder(a.stdout).Encode(rep)
			}
			return a.printPatch(rep)
		},
	}
}

func newPatchRollbackCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rollback RUN [NAME...]", Short: "take zones back to where they were before a patch run",
		Long: "Takes zones back to the snapshots that a patch run made: all zones it patched, or those\n" +
			"named. Running zones are shut down for it and booted again. Nothing is destroyed: what a\n" +
			"zone was until now stays as a snapshot.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			done, err := a.patchEngine(s).Rollback(cmd.Context(), args[0], args[1:])
			if done == nil {
				return err
			}
			if printErr := a.printRollback(done); printErr != nil {
				return printErr
			}
			return err
		},
	}
}

func (a *app) printRollback(done []patch.RollbackResult) error {
	type col = ui.Column[patch.RollbackResult]
	return ui.List(a.stdout, ui.ListOptions{Format: a.format, Key: "zones"}, []col{
		{Name: "zone", Value: func(r patch.RollbackResult) string { return r.Zone }},
		{Name: "result", Value: func(r patch.RollbackResult) string {
			if r.Reason != "" {
				return "failed: " + strings.ReplaceAll(r.Reason, "\n", "; ")
			}
			return "at @" + r.Snapshot
		}},
		{Name: "kept", Value: func(r patch.RollbackResult) string { return r.Kept }},
		{Name: "downtime", Right: true, Value: func(r patch.RollbackResult) string { return fmt.Sprintf("%.1fs", r.Downtime) }},
	}, done)
}
