package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/ui"
)

// configStore is where the definitions of zones are kept.
type configStore interface {
	LoadConfig(ctx context.Context, name string) (config.Zone, error)
	UpdateConfig(ctx context.Context, name string, change func(config.Zone) (config.Zone, error)) error
	// VerifyConfig checks a definition against this host: what cannot be
	// given is an error, what is doubtful a warning.
	VerifyConfig(ctx context.Context, name string, z config.Zone) (warnings []string, err error)
	// RunningConfig returns what the zone was booted with, and whether it runs.
	RunningConfig(ctx context.Context, name string) (z config.Zone, runs bool, err error)
	// ApplyConfig makes on the running zone what can be made there.
	ApplyConfig(ctx context.Context, name string) (applied, waiting []config.Change, err error)
}

func newConfigCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Show and change what a zone is to be",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(
		configCommand(a, "show NAME [KEY]", "Show the keys of a zone, or the value of one", cobra.RangeArgs(1, 2), configShow),
		configCommand(a, "set NAME KEY=VALUE...", "Set keys; all of them or, on any problem, none", cobra.MinimumNArgs(2), configSet),
		configCommand(a, "clear NAME KEY...", "Unset keys, or all keys of a resource", cobra.MinimumNArgs(2), configClear),
		configCommand(a, "add NAME LIST FIELD=VALUE...", "Add an entry to a list such as fs", cobra.MinimumNArgs(3), configAdd),
		configCommand(a, "remove NAME LIST FIELD=VALUE...", "Remove the entries of a list that have these values", cobra.MinimumNArgs(3), configRemove),
		configCommand(a, "edit NAME", "Change the definition in $VISUAL or $EDITOR", cobra.ExactArgs(1), configEdit),
		configCommand(a, "diff NAME", "Show what is defined and not yet in force on the running zone", cobra.ExactArgs(1), configDiff),
		configCommand(a, "apply NAME", "Make the pending changes on the running zone, as far as they can be made there", cobra.ExactArgs(1), configApply),
		configCommand(a, "revert NAME", "Take pending changes back: define what the running zone has", cobra.ExactArgs(1), configRevert),
		configCommand(a, "verify NAME", "Check a zone's definition against this host", cobra.ExactArgs(1), configVerify),
		configCommand(a, "export NAME", "Print the definition as TOML, ready for zone create -f", cobra.ExactArgs(1), configExport),
		configKeysCommand(a),
	)
	return c
}

// configRun does the work of one verb on the zone args[0].
type configRun func(ctx context.Context, a *app, s configStore, args []string) error

func configCommand(a *app, use, short string, args cobra.PositionalArgs, run configRun) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			return run(cmd.Context(), a, s, args)
		},
	}
}

// configRow is one key as config show prints it. Value is what holds: the
// key's own value or else its default; "" is no limit.
type configRow struct {
	Key     string `json:"key"`
	Value   any    `json:"value"` // in JSON sizes are bytes, times seconds
	Set     bool   `json:"set"`
	Default string `json:"default"`
	text    string
}

func configShow(ctx context.Context, a *app, s configStore, args []string) error {
	name := args[0]
	z, err := s.LoadConfig(ctx, name)
	if err != nil {
		return err
	}
	keys := config.AllKeys(z)
	if len(args) == 2 {
		k, err := config.Lookup(args[1])
		if err != nil {
			return err
		}
		if a.format == ui.FormatTable || a.format == "" {
			_, err = fmt.Fprintln(a.stdout, ui.Printable(config.Effective(z, name, k.Name)))
			return err
		}
		keys = []config.Key{k}
	}
	rows := make([]configRow, len(keys))
	for i, k := range keys {
		_, set := config.Get(z, k.Name)
		rows[i] = configRow{
			Key: k.Name, Set: set, Default: k.Default,
			Value: config.EffectiveValue(z, name, k.Name), text: config.Effective(z, name, k.Name),
		}
	}
	return ui.List(a.stdout, ui.ListOptions{Format: a.format, Key: "keys"}, []ui.Column[configRow]{
		{Name: "key", Value: func(r configRow) string { return r.Key }},
		{Name: "value", Value: func(r configRow) string { return r.text }},
		{Name: "source", Value: configRow.source},
	}, rows)
}

func (r configRow) source() string {
	switch {
	case r.Set:
		return "set"
	case r.text != "":
		return "default"
	default:
		return ""
	}
}

func configSet(ctx context.Context, a *app, s configStore, args []string) error {
	return changeConfig(ctx, a, s, args[0], func(z *config.Zone) error {
		return config.SetAll(z, args[1:])
	})
}

func configClear(ctx context.Context, a *app, s configStore, args []string) error {
	return changeConfig(ctx, a, s, args[0], func(z *config.Zone) error {
		for _, key := range args[1:] {
			if err := config.Clear(z, key); err != nil {
				return err
			}
		}
		return config.Validate(*z)
	})
}

func configAdd(ctx context.Context, a *app, s configStore, args []string) error {
	return changeConfig(ctx, a, s, args[0], func(z *config.Zone) error {
		return config.Add(z, args[1], args[2:])
	})
}

func configRemove(ctx context.Context, a *app, s configStore, args []string) error {
	return changeConfig(ctx, a, s, args[0], func(z *config.Zone) error {
		return config.Remove(z, args[1], args[2:])
	})
}

// changeConfig edits, checks and saves a zone's definition, and says what a
// running zone will not see before its next boot.
func changeConfig(ctx context.Context, a *app, s configStore, name string, edit func(*config.Zone) error) error {
	var changes []config.Change
	err := s.UpdateConfig(ctx, name, func(old config.Zone) (config.Zone, error) {
		next := old
		if err := edit(&next); err != nil {
			return old, err
		}
		changes = config.Diff(old, next)
		if err := refuseFixed(name, old, next, changes); err != nil {
			return old, err
		}
		if len(changes) == 0 {
			return old, nil
		}
		warnings, err := s.VerifyConfig(ctx, name, next)
		if err != nil {
			return old, err
		}
		warn(a, name, warnings)
		return next, nil
	})
	if err != nil {
		return err
	}
	return tellPending(ctx, a, s, name, changes)
}

// refuseFixed refuses to change what holds for a key that was settled when the
// zone was created. Writing down the value that holds anyway is no change.
func refuseFixed(name string, old, next config.Zone, changes []config.Change) error {
	for _, c := range changes {
		k, err := config.Lookup(c.Key)
		if err != nil {
			return err
		}
		was, is := config.Effective(old, name, c.Key), config.Effective(next, name, c.Key)
		if k.Fixed && was != is {
			return errdefs.New(errdefs.WrongState, "configure "+name, "%s is %s since the zone was created and cannot become %s", c.Key, was, is).
				WithHint("zone create NEW --set %s=%s", c.Key, is)
		}
	}
	return nil
}

// tellPending says which of the changes a running zone does not have yet.
func tellPending(ctx context.Context, a *app, s configStore, name string, changes []config.Change) error {
	var pending []config.Change
	for _, c := range changes {
		// A fixed key that got here only has its present value written down.
		if k, err := config.Lookup(c.Key); err == nil && k.NextBoot && !k.Fixed {
			pending = append(pending, c)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	_, runs, err := s.RunningConfig(ctx, name)
	if err != nil || !runs {
		return err
	}
	live, waiting := config.SplitLive(pending)
	if len(live) > 0 {
		fmt.Fprintf(a.stderr, "%s is running: %s takes effect when applied (zone config apply %s) or at the next boot\n", name, keyList(live), name)
	}
	tellWaiting(a, name, waiting)
	return nil
}

func tellWaiting(a *app, name string, waiting []config.Change) {
	if len(waiting) > 0 {
		fmt.Fprintf(a.stderr, "%s is running: %s takes effect at the next boot (zone reboot %s)\n", name, keyList(waiting), name)
	}
}

func keyList(changes []config.Change) string {
	names := make([]string, len(changes))
	for i, c := range changes {
		names[i] = c.Key
	}
	return strings.Join(names, ", ")
}

func configVerify(ctx context.Context, a *app, s configStore, args []string) error {
	name := args[0]
	z, err := s.LoadConfig(ctx, name)
	if err != nil {
		return err
	}
	if err := config.Validate(z); err != nil {
		return err
	}
	warnings, err := s.VerifyConfig(ctx, name, z)
	if err != nil {
		return err
	}
	if a.format != ui.FormatTable && a.format != "" {
		if warnings == nil {
			warnings = []string{}
		}
		return ui.Object(a.stdout, a.format, map[string]any{"schema": 1, "name": name, "ok": true, "warnings": warnings})
	}
	warn(a, name, warnings)
	_, err = fmt.Fprintf(a.stdout, "%s: this host can give everything the zone asks for\n", name)
	return err
}

func warn(a *app, name string, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintf(a.stderr, "warning: %s: %s\n", name, ui.Printable(w))
	}
}

func configExport(ctx context.Context, a *app, s configStore, args []string) error {
	z, err := s.LoadConfig(ctx, args[0])
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(config.Render(z))
	return err
}

func configKeysCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "keys", Short: "List every key, its values and its meaning", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return ui.List(a.stdout, ui.ListOptions{Format: a.format, Key: "keys"}, []ui.Column[config.Key]{
				{Name: "key", Value: func(k config.Key) string { return k.Name }},
				{Name: "type", Value: func(k config.Key) string { return k.Type }},
				{Name: "default", Value: func(k config.Key) string { return k.Default }},
				{Name: "allowed", Value: func(k config.Key) string { return k.Allowed }},
				{Name: "meaning", Value: func(k config.Key) string { return k.Doc }},
			}, config.Keys())
		},
	}
}
