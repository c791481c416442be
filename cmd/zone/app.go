package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/network"
	"zone/internal/runtime"
	"zone/internal/storage"
	"zone/internal/storage/btrfs"
	"zone/internal/storage/dir"
	"zone/internal/ui"
	"zone/internal/zone"
)

// app is what every command gets: where state lives, how to print, where to.
type app struct {
	home, run string // $ZONE_HOME and $ZONE_RUN, absolute
	format    string // table, json or jsonl
	json      bool   // --json, the short form of --format json
	noColor   bool
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	runner    host.Runner
	entered   bool // this process is in the private mount namespace
}

const defaultRun = "/run/zone"

// main runs one command line and returns the exit code. It alone prints
// errors.
func (a *app) main(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	a.leave()
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errdefs.New(errdefs.Interrupted, "interrupted", "what was begun has been taken back")
	}
	a.report(err)
	var own exitCode
	if errors.As(err, &own) {
		return own.code
	}
	return errdefs.KindOf(err).ExitCode()
}

// exitCode is an error with an exit code of its own: that of a command in a
// zone.
type exitCode struct {
	code int
	error
}

func (e exitCode) Unwrap() error { return e.error }

// report prints an error: what, why, and the command that helps; one JSON
// object when the output is JSON.
func (a *app) report(err error) {
	hint := errdefs.HintOf(err)
	if a.json || a.format == ui.FormatJSON || a.format == ui.FormatJSONL {
		_ = ui.JSON(a.stderr, map[string]any{
			"schema": 1, "error": err.Error(), "hint": hint, "exit_code": errdefs.KindOf(err).ExitCode(),
		})
		return
	}
	text := ""
	for i, line := range strings.Split(err.Error(), "\n") {
		if i > 0 {
			text += "\n"
		}
		text += ui.Printable(line)
	}
	fmt.Fprintf(a.stderr, "zone: %s\n", text)
	if hint != "" {
		fmt.Fprintf(a.stderr, "try: %s\n", hint)
	}
}

// note tells the user something that is not the answer.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "zone: %s\n", ui.Printable(fmt.Sprintf(format, args...)))
}

// settle makes the global flags final, before any command runs.
func (a *app) settle() error {
	if a.json {
		a.format = ui.FormatJSON
	}
	switch a.format {
	case ui.FormatTable, ui.FormatJSON, ui.FormatJSONL:
	default:
		bad := a.format
		a.format = ui.FormatTable
		return errdefs.New(errdefs.Usage, "--format "+bad, "unknown format; allowed: table, json, jsonl")
	}
	var err error
	if a.home, err = filepath.Abs(firstOf(a.home, os.Getenv("ZONE_HOME"), zone.DefaultHome)); err != nil {
		return err
	}
	// A home of its own has run-time files of its own.
	if a.run, err = filepath.Abs(firstOf(a.run, os.Getenv("ZONE_RUN"), defaultRun+zone.HomeTag(a.home))); err != nil {
		return err
	}
	if strings.Contains(a.run, ":") {
		return errdefs.New(errdefs.Usage, "--run "+a.run, "a colon is not allowed: programs that work in there take it for a separator")
	}
	return err
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// pools returns the registry of pools.
func (a *app) pools() *storage.Registry {
	return &storage.Registry{Home: a.home, Run: a.run, Runner: a.runner, Backends: map[string]storage.Backend{
		"btrfs": btrfs.Backend{Runner: a.runner}, "dir": dir.Backend{},
	}}
}

// enter prepares for commands that touch zones or pools: root's rights, the
// state directories, and the private mount namespace. It may start the program
// again. Further calls do nothing.
func (a *app) enter() error {
	if a.entered {
		return nil
	}
	if os.Geteuid() != 0 {
		return errdefs.New(errdefs.Failed, strings.Join(os.Args[1:], " "), "zones need root's rights").WithHint("run it as root")
	}
	for _, dir := range []string{a.home, a.run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := host.EnterPrivateMounts(a.run); err != nil {
		return err
	}
	a.entered = true
	return nil
}

// leave unpins the private mount namespace when no pool needs it.
func (a *app) leave() {
	if !a.entered {
		return
	}
	if names, err := a.pools().Names(); err == nil && len(names) == 0 {
		_ = host.ReleasePrivateMounts(a.run) // whoever made a pool meanwhile mounts it anew
	}
}

// service wires the parts of the machine together, without looking at any
// zone.
func (a *app) service() (*zone.Service, error) {
	tree, err := cgroup.Detect("/")
	if err != nil {
		return nil, err
	}
	engine, err := runtime.Find(filepath.Join(a.run, "runc"), a.runner)
	if err != nil {
		return nil, err
	}
	net, err := network.Open(a.home, a.run, a.runner)
	if err != nil {
		return nil, err
	}
	small, _ := host.LookPath("catatonit") // needed by some images only
	return &zone.Service{
		Home: a.home, Run: a.run, Runner: a.runner, Pools: a.pools(), Engine: engine, Network: net,
		Cgroups: tree, Init: small, Note: a.note,
		ResolvConf: func() ([]byte, error) {
			data, err := network.ResolvConf("/etc")
			if errors.Is(err, network.ErrNoNameserver) {
				a.note("the host has no name server that zones could use")
				return data, nil
			}
			return data, err
		},
	}, nil
}

// zones returns the service with everything mended that an interrupted command
// left behind. Commands that show or change zones begin with it. What cannot be
// mended is told and stands in the way of nobody but its own zones.
func (a *app) zones(ctx context.Context) (*zone.Service, error) {
	if err := a.enter(); err != nil {
		return nil, err
	}
	s, err := a.service()
	if err != nil {
		return nil, err
	}
	if err := s.Mend(ctx); err != nil {
		a.note("%v", err)
	}
	if err := a.patchEngine(s).Recover(ctx, func(line string) { a.note("%s", line) }); err != nil {
		a.note("%v", err)
	}
	return s, ctx.Err()
}

// progress reports on long work: a status line on a terminal, plain lines
// elsewhere.
func (a *app) progress() ui.Progress {
	return ui.NewProgress(a.stderr, ui.IsTerminal(a.stderr) && !a.noColor)
}

// newRootCommand builds the whole command tree.
func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "zone",
		Short: "isolated systems on this host: create, watch, patch, roll back",
		Long: "zone runs isolated systems (zones) on a Linux host, measures them against their\n" +
			"limits, patches them all at once and rolls back the patch that is bad.",
		SilenceErrors: true, SilenceUsage: true, Version: version(),
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.settle() },
	}
	f := root.PersistentFlags()
	f.StringVar(&a.home, "home", "", "where state lives (default $ZONE_HOME or "+zone.DefaultHome+")")
	f.StringVar(&a.run, "run", "", "where run-time files live (default $ZONE_RUN or "+defaultRun+")")
	f.StringVar(&a.format, "format", ui.FormatTable, "table, json or jsonl")
	f.BoolVar(&a.json, "json", false, "the same as --format json")
	f.BoolVar(&a.noColor, "no-color", os.Getenv("NO_COLOR") != "", "no colour and no rewritten lines")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return errdefs.Wrap(errdefs.Usage, cmd.CommandPath(), err).WithHint("%s --help", cmd.CommandPath())
	})
	groups := []*cobra.Group{
		{ID: "zones", Title: "Zones:"}, {ID: "patch", Title: "Patching and watching:"}, {ID: "host", Title: "Host, pools and images:"},
	}
	root.AddGroup(groups...)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("zones", zoneCommands(a)...)
	add("zones", newConfigCommand(a), newBECommand(a))
	add("patch", newPatchCommand(a), newStatCommand(a))
	add("host", newDoctorCommand(a), newPoolCommand(a), newImageCommand(a))
	root.AddCommand(newDocsCommand(a))
	addCompletions(root, a)
	usageErrors(root)
	return root
}

// usageErrors makes wrong arguments of every command a usage error, with the
// nearest command where a word is unknown.
func usageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return errdefs.New(errdefs.Usage, cmd.CommandPath(), "wrong number of arguments: %d; usage: %s", len(args), cmd.UseLine()).
					WithHint("%s --help", cmd.CommandPath())
			}
			return nil
		}
	}
	if c.HasSubCommands() && c.RunE == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = unknownCommand
	}
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	e := errdefs.New(errdefs.Usage, cmd.CommandPath()+" "+args[0], "no such command; allowed: %s", strings.Join(names, ", "))
	if near := config.Nearest(args[0], names); near != "" {
		return e.WithHint("%s %s", cmd.CommandPath(), near)
	}
	return e.WithHint("%s --help", cmd.CommandPath())
}
