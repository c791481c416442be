package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/ui"
	"zone/internal/zone"
)

// zoneCommands are the verbs on zones, which stand at the top level.
func zoneCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newCreateCommand(a), newCloneCommand(a),
		newVerbCommand(a, "boot", "start zones", "Starts zones that are installed, ready or down.", (*zone.Service).Boot),
		newVerbCommand(a, "ready", "prepare zones without starting anything in them",
			"Makes a zone's namespaces, mounts, links and limits; boot then only starts its first process.", (*zone.Service).Ready),
		newHaltCommand(a),
		newVerbCommand(a, "shutdown", "have zones run their own shutdown",
			"Runs the zone's own shutdown; a zone that takes longer than its shutdown-timeout is halted.", (*zone.Service).Shutdown),
		newRebootCommand(a), newListCommand(a), newExecCommand(a), newLoginCommand(a), newLogCommand(a),
		newSnapshotCommand(a), newSnapshotsCommand(a), newRollbackCommand(a), newDeleteCommand(a),
		newSendCommand(a), newReceiveCommand(a), newMoveCommand(a),
	}
}

func newCreateCommand(a *app) *cobra.Command {
	var spec zone.CreateSpec
	var file string
	var sets []string
	c := &cobra.Command{
		Use: "create NAME", Short: "create a zone from an image",
		Example: "  zone create web1 --image debian12 --set capped-cpu=0.5 --set capped-memory=512M\n" +
			"  zone create db1 --image debian12@2 --set root=whole -f db1.toml",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Name = args[0]
			if err := config.ValidName(spec.Name); err != nil {
				return err
			}
			var err error
			if spec.Config, err = readDefinition(file, sets); err != nil {
				return err
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			return s.Create(cmd.Context(), spec)
		},
	}
	f := c.Flags()
	f.StringVar(&spec.Image, "image", "", "image to stand on, NAME or NAME@VERSION (default: the only one)")
	f.StringVar(&spec.Pool, "pool", "", "pool to keep it in (default "+zone.DefaultPool+")")
	f.StringVarP(&file, "file", "f", "", "definition in TOML, as `zone config export` prints it")
	f.StringArrayVar(&sets, "set", nil, "KEY=VALUE, repeatable; `zone config keys` lists the keys")
	return c
}

func newCloneCommand(a *app) *cobra.Command {
	var count int
	c := &cobra.Command{
		Use: "clone SOURCE NEW...", Short: "copy a zone, running or not, on write",
		Long: "Makes copies of a zone that share its disk blocks and, where the root is sparse, its\n" +
			"page cache. Host name, machine id, address and ssh host keys are made anew.",
		Example: "  zone clone base web1 web2\n  zone clone base web --count 8      web-001 to web-008",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := cloneNames(args[1:], count, cmd.Flags().Changed("count"))
			if err != nil {
				return err
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			return s.Clone(cmd.Context(), args[0], names)
		},
	}
	c.Flags().IntVar(&count, "count", 1, "make so many, named NEW-001, NEW-002, ...")
	return c
}

const maxClones = 1000

func cloneNames(names []string, count int, counted bool) ([]string, error) {
	if !counted {
		seen := map[string]bool{}
		for _, n := range names {
			if seen[n] {
				return nil, errdefs.New(errdefs.Usage, "clone", "the name %s stands there twice", n)
			}
			seen[n] = true
		}
		return names, nil
	}
	if len(names) != 1 || count < 1 || count > maxClones {
		return nil, errdefs.New(errdefs.Usage, "clone --count", "takes one new name and a number from 1 to %d", maxClones)
	}
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%03d", names[0], i+1)
	}
	return list, nil
}

// selection is how commands on several zones are told which.
type selection struct {
	all bool
}

func (sel *selection) addFlags(c *cobra.Command) {
	c.Flags().BoolVar(&sel.all, "all", false, "every zone")
}

func (sel *selection) names(ctx context.Context, s *zone.Service, args []string) ([]string, error) {
	if len(args) == 0 && !sel.all {
		return nil, errdefs.New(errdefs.Usage, "which zones", "none named").WithHint("give names, patterns such as 'web*', or --all")
	}
	return s.Select(ctx, args, sel.all)
}

// verbWorkers bounds how many zones are started or stopped at once.
const verbWorkers = 16

// each runs a verb on several zones at once; a failure does not stop the
// others. One zone's error is returned as it is, several are reported one by
// one and end in kind Partial, or the common kind when all failed.
func (a *app) each(ctx context.Context, verb string, names []string, f func(context.Context, string) error) error {
	if len(names) == 1 {
		return f(ctx, names[0])
	}
	failures := make([]error, len(names))
	g := errgroup.Group{}
	g.SetLimit(verbWorkers)
	for i, n := range names {
		g.Go(func() error {
			failures[i] = f(ctx, n)
			return nil
		})
	}
	_ = g.Wait()
	failed := 0
	kind := errdefs.Partial
	for _, err := range failures {
		if err != nil {
			failed++
			a.report(err)
			kind = errdefs.KindOf(err)
		}
	}
	switch failed {
	case 0:
		return nil
	case len(names):
		return errdefs.New(kind, verb, "none of %d zones done", len(names))
	}
	return errdefs.New(errdefs.Partial, verb, "%d of %d zones failed", failed, len(names))
}

// newVerbCommand makes a command that runs one method on each selected zone.
func newVerbCommand(a *app, verb, short, long string, f func(*zone.Service, context.Context, string) error) *cobra.Command {
	var sel selection
	c := &cobra.Command{
		Use: verb + " NAME...", Short: short, Long: long,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			names, err := sel.names(cmd.Context(), s, args)
			if err != nil {
				return err
			}
			return a.each(cmd.Context(), verb, names, func(ctx context.Context, n string) error { return f(s, ctx, n) })
		},
	}
	sel.addFlags(c)
	return c
}

func newHaltCommand(a *app) *cobra.Command {
	force := false
	c := newVerbCommand(a, "halt", "stop zones at once",
		"Ends all processes of a zone without running its scripts. With -F it does not wait for\n"+
			"another command that works on the zone, such as a patch run, which then rolls back.",
		func(s *zone.Service, ctx context.Context, name string) error {
			if force {
				if err := s.Kill(ctx, name); err != nil {
					return err
				}
			}
			err := s.Halt(ctx, name)
			if force && errdefs.Is(err, errdefs.WrongState) {
				return nil // whoever worked on it has cleared it away
			}
			return err
		})
	c.Flags().BoolVarP(&force, "force", "F", false, "kill its processes even while another command works on it")
	return c
}

func newRebootCommand(a *app) *cobra.Command {
	return newVerbCommand(a, "reboot", "shut zones down and start them again",
		"Runs the zone's own shutdown, then boots it.", (*zone.Service).Reboot)
}

func newListCommand(a *app) *cobra.Command {
	var opt struct {
		configured, installed, parseable, verbose bool
		quiet                                     bool
		columns                                   []string
	}
	c := &cobra.Command{
		Use: "list [NAME...]", Short: "list zones and their states",
		Long: "Lists zones. Without options only those that run; -c lists all, -i those whose root is\n" +
			"installed. States: configured incomplete installed ready running shutting_down down\n" +
			"mounted unavailable.",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			list, err := s.List(cmd.Context())
			if err != nil {
				return err
			}
			if list, err = filterList(cmd.Context(), s, list, args, opt.configured, opt.installed); err != nil {
				return err
			}
			if opt.parseable {
				return printZones(a, list)
			}
			if len(list) == 0 && len(args) == 0 && !opt.configured && !opt.installed && ui.IsTerminal(a.stderr) {
				a.note("no zone is running; `zone list -c` lists all")
			}
			o := ui.ListOptions{Format: a.format, Quiet: opt.quiet, Columns: opt.columns, Key: "zones"}
			if opt.verbose && opt.columns == nil {
				o.Columns = []string{"name", "state", "pid", "address", "root", "image", "pool", "layers", "snapshots", "since", "why"}
			}
			return ui.List(a.stdout, o, listColumns(), list)
		},
	}
	f := c.Flags()
	f.BoolVarP(&opt.configured, "configured", "c", false, "all zones, whatever their state")
	f.BoolVarP(&opt.installed, "installed", "i", false, "zones with a root")
	f.BoolVarP(&opt.parseable, "parseable", "p", false, "zoneid:name:state:path:uuid:brand:ip-type, colons escaped")
	f.BoolVarP(&opt.parseable, "parseable-too", "P", false, "the same as -p")
	_ = f.MarkHidden("parseable-too")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "more columns")
	f.BoolVarP(&opt.quiet, "quiet", "q", false, "names only")
	f.StringSliceVar(&opt.columns, "columns", nil, "which columns, in which order")
	return c
}

func filterList(ctx context.Context, s *zone.Service, list []zone.Status, args []string, all, installed bool) ([]zone.Status, error) {
	wanted := map[string]bool{}
	if len(args) > 0 {
		names, err := s.Select(ctx, args, false)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			wanted[n] = true
		}
	}
	var kept []zone.Status
	for _, st := range list {
		var show bool
		switch {
		case len(args) > 0:
			show = wanted[st.Name]
		case all:
			show = true
		case installed:
			show = st.State != zone.Configured && st.State != zone.Incomplete
		default:
			show = st.State != zone.Configured && st.State != zone.Incomplete && st.State != zone.Installed
		}
		if show {
			kept = append(kept, st)
		}
	}
	return kept, nil
}

func listColumns() []ui.Column[zone.Status] {
	text := func(name string, f func(zone.Status) string) ui.Column[zone.Status] {
		return ui.Column[zone.Status]{Name: name, Value: f}
	}
	number := func(name string, f func(zone.Status) int) ui.Column[zone.Status] {
		return ui.Column[zone.Status]{Name: name, Right: true, Hidden: true, Value: func(s zone.Status) string {
			if n := f(s); n != 0 {
				return fmt.Sprint(n)
			}
			return ""
		}}
	}
	hidden := func(c ui.Column[zone.Status]) ui.Column[zone.Status] {
		c.Hidden = true
		return c
	}
	return []ui.Column[zone.Status]{
		text("name", func(s zone.Status) string { return s.Name }),
		text("state", func(s zone.Status) string { return string(s.State) }),
		text("address", func(s zone.Status) string { return s.Address }),
		text("root", func(s zone.Status) string { return s.Root }),
		text("image", func(s zone.Status) string { return s.Image }),
		hidden(text("pool", func(s zone.Status) string { return s.Pool })),
		hidden(text("uuid", func(s zone.Status) string { return s.UUID })),
		hidden(text("path", func(s zone.Status) string { return s.Path })),
		hidden(text("clone-of", func(s zone.Status) string { return s.ClonedOf })),
		hidden(text("why", func(s zone.Status) string { return s.Why })),
		hidden(text("since", func(s zone.Status) string {
			if s.Booted == nil {
				return ""
			}
			return s.Booted.Format(time.DateTime)
		})),
		hidden(text("created", func(s zone.Status) string { return s.Created.Format(time.DateTime) })),
		number("pid", func(s zone.Status) int { return s.PID }),
		number("layers", func(s zone.Status) int { return s.Layers }),
		number("snapshots", func(s zone.Status) int { return s.Snapshots }),
	}
}

// printZones prints the colon-separated form of zoneadm list -p.
func printZones(a *app, list []zone.Status) error {
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`)
	for _, s := range list {
		id := "-"
		if s.PID != 0 {
			id = fmt.Sprint(s.PID)
		}
		fields := []string{id, s.Name, string(s.State), s.Path, s.UUID, s.Root, "excl"}
		for i, f := range fields {
			fields[i] = escape.Replace(ui.Printable(f))
		}
		if _, err := fmt.Fprintln(a.stdout, strings.Join(fields, ":")); err != nil {
			return err
		}
	}
	return nil
}

func newDeleteCommand(a *app) *cobra.Command {
	var force, dryRun bool
	var sel selection
	c := &cobra.Command{
		Use: "delete NAME...", Short: "delete zones with their snapshots, from any state",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			names, err := sel.names(cmd.Context(), s, args)
			if err != nil {
				return err
			}
			if dryRun {
				for _, n := range names {
					fmt.Fprintf(a.stdout, "would delete zone %s\n", n)
				}
				return nil
			}
			if err := a.confirm(cmd.Context(), force, "delete "+strings.Join(names, ", ")+" with all snapshots"); err != nil {
				return err
			}
			err = a.each(cmd.Context(), "delete", names, func(ctx context.Context, n string) error { return s.Delete(ctx, n, force) })
			return errors.Join(err, s.Settle(cmd.Context()))
		},
	}
	sel.addFlags(c)
	c.Flags().BoolVarP(&force, "force", "F", false, "do not ask; halt zones that run")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be deleted")
	return c
}

// splitSnapshot parses NAME@SNAP.
func splitSnapshot(arg string) (name, snap string, err error) {
	name, snap, ok := strings.Cut(arg, "@")
	if !ok || name == "" || snap == "" {
		return "", "", errdefs.New(errdefs.Usage, arg, "not a snapshot; allowed form: NAME@SNAP")
	}
	return name, snap, errors.Join(config.ValidName(name), config.ValidSnapshotName(snap))
}

func newSnapshotCommand(a *app) *cobra.Command {
	var remove, force bool
	c := &cobra.Command{
		Use: "snapshot NAME@SNAP", Short: "keep a zone's root as it is now",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, snap, err := splitSnapshot(args[0])
			if err != nil {
				return err
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			if remove {
				if err := a.confirm(cmd.Context(), force, "delete snapshot "+args[0]); err != nil {
					return err
				}
				err := s.DeleteSnapshot(cmd.Context(), name, snap)
				return errors.Join(err, s.Settle(cmd.Context()))
			}
			return s.Snapshot(cmd.Context(), name, snap)
		},
	}
	c.Flags().BoolVarP(&remove, "delete", "d", false, "delete the snapshot instead")
	c.Flags().BoolVarP(&force, "force", "F", false, "do not ask before deleting")
	return c
}

func newSnapshotsCommand(a *app) *cobra.Command {
	quiet := false
	c := &cobra.Command{
		Use: "snapshots [NAME...]", Short: "list snapshots, oldest first",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			names, err := s.Select(cmd.Context(), args, len(args) == 0)
			if err != nil {
				return err
			}
			var list []zone.Snapshot
			for _, n := range names {
				part, err := s.Snapshots(cmd.Context(), n)
				if err != nil {
					return err
				}
				list = append(list, part...)
			}
			return ui.List(a.stdout, ui.ListOptions{Format: a.format, Quiet: quiet, Key: "snapshots"}, []ui.Column[zone.Snapshot]{
				{Name: "snapshot", Value: func(s zone.Snapshot) string { return s.Zone + "@" + s.Name }},
				{Name: "created", Value: func(s zone.Snapshot) string { return s.Created.Local().Format(time.DateTime) }},
				{Name: "used", Right: true, Value: func(s zone.Snapshot) string {
					if s.Used < 0 {
						return ""
					}
					return ui.Bytes(s.Used)
				}},
			}, list)
		},
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return c
}

func newRollbackCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "rollback NAME@SNAP", Short: "make a halted zone's root what it was at a snapshot",
		Long: "Replaces the zone's root by a copy of the snapshot. Nothing is destroyed: the root that\n" +
			"is replaced is kept as a snapshot of its own, and newer snapshots stay.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, snap, err := splitSnapshot(args[0])
			if err != nil {
				return err
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			kept, err := s.Rollback(cmd.Context(), name, snap, "")
			if err != nil {
				return err
			}
			a.note("%s is as it was at %s; the root it had is kept as %s@%s", name, args[0], name, kept)
			return nil
		},
	}
}

// readDefinition puts a definition together from a file and --set options.
func readDefinition(file string, sets []string) (config.Zone, error) {
	z, err := definitionFile(file)
	if err != nil {
		return z, err
	}
	return z, config.SetAll(&z, sets)
}
