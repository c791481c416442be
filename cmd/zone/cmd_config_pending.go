package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/ui"
)

// pendingRow is one key that the running zone does not have yet.
type pendingRow struct {
	Key     string `json:"key"`
	Running string `json:"running"` // "" is not set
	Defined string `json:"defined"`
	Live    bool   `json:"live"` // config apply can make the change
}

func (r pendingRow) by() string {
	if r.Live {
		return "apply"
	}
	return "reboot"
}

func configDiff(ctx context.Context, a *app, s configStore, args []string) error {
	name := args[0]
	pending, err := pendingOf(ctx, s, name)
	if errdefs.Is(err, errdefs.WrongState) {
		a.note("%s is not running: all of its definition holds at the next boot", name)
	} else if err != nil {
		return err
	}
	live, _ := config.SplitLive(pending)
	isLive := map[string]bool{}
	for _, c := range live {
		isLive[c.Key] = true
	}
	rows := make([]pendingRow, len(pending))
	for i, c := range pending {
		rows[i] = pendingRow{c.Key, c.Old, c.New, isLive[c.Key]}
	}
	if len(rows) == 0 && (a.format == ui.FormatTable || a.format == "") {
		return nil // as diff does
	}
	return ui.List(a.stdout, ui.ListOptions{Format: a.format, Key: "changes"}, []ui.Column[pendingRow]{
		{Name: "key", Value: func(r pendingRow) string { return r.Key }},
		{Name: "running", Value: func(r pendingRow) string { return r.Running }},
		{Name: "defined", Value: func(r pendingRow) string { return r.Defined }},
		{Name: "by", Value: pendingRow.by},
	}, rows)
}

// pendingOf returns the changes that a running zone does not have yet.
func pendingOf(ctx context.Context, s configStore, name string) ([]config.Change, error) {
	z, err := s.LoadConfig(ctx, name)
	if err != nil {
		return nil, err
	}
	running, err := runningOf(ctx, s, name)
	if err != nil {
		return nil, err
	}
	return config.Pending(running, z, name), nil
}

func runningOf(ctx context.Context, s configStore, name string) (config.Zone, error) {
	running, runs, err := s.RunningConfig(ctx, name)
	if err == nil && !runs {
		err = errdefs.New(errdefs.WrongState, "configure "+name, "the zone is not running: nothing is pending").WithHint("zone config show %s", name)
	}
	return running, err
}

func configApply(ctx context.Context, a *app, s configStore, args []string) error {
	applied, waiting, err := s.ApplyConfig(ctx, args[0])
	if err != nil {
		return err
	}
	if a.format == ui.FormatJSON || a.format == ui.FormatJSONL {
		none := []config.Change{}
		return ui.Object(a.stdout, a.format, map[string]any{
			"schema": 1, "name": args[0], "applied": append(none, applied...), "waiting": append(none, waiting...),
		})
	}
	for _, c := range applied {
		fmt.Fprintf(a.stdout, "%s: %s -> %s\n", c.Key, shownValue(c.Old), shownValue(c.New))
	}
	if len(applied)+len(waiting) == 0 {
		a.note("%s has all of its definition in force", args[0])
	}
	tellWaiting(a, args[0], waiting)
	return nil
}

func shownValue(v string) string {
	if v == "" {
		return "none"
	}
	return ui.Printable(v)
}

func configRevert(ctx context.Context, a *app, s configStore, args []string) error {
	name := args[0]
	running, err := runningOf(ctx, s, name)
	if err != nil {
		return err
	}
	var pending []config.Change
	err = s.UpdateConfig(ctx, name, func(z config.Zone) (config.Zone, error) {
		pending = config.Pending(running, z, name)
		err := config.Take(&z, running, name, pending)
		return z, err
	})
	if err != nil {
		return err
	}
	for _, c := range pending {
		fmt.Fprintf(a.stderr, "%s: back to %s\n", c.Key, shownValue(c.Old))
	}
	return nil
}

// configEdit lets the user change the definition as a text, until it is right
// or given up.
func configEdit(ctx context.Context, a *app, s configStore, args []string) error {
	name := args[0]
	base, err := s.LoadConfig(ctx, name)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "zone-config-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, name+".toml")
	text := config.Render(base)
	for {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		if err := a.openEditor(ctx, file); err != nil {
			return err
		}
		if text, err = os.ReadFile(file); err != nil {
			return err
		}
		err := saveEdited(ctx, a, s, name, base, text)
		if err == nil || !errdefs.Is(err, errdefs.Usage) && !errdefs.Is(err, errdefs.WrongState) && !errdefs.Is(err, errdefs.NotSupported) {
			return err
		}
		if !a.askAgain(err) {
			return err
		}
	}
}

func saveEdited(ctx context.Context, a *app, s configStore, name string, base config.Zone, text []byte) error {
	edited, err := config.Parse(name+".toml", text)
	if err != nil {
		return err
	}
	return changeConfig(ctx, a, s, name, func(z *config.Zone) error {
		if len(config.Diff(base, *z)) > 0 {
			return errdefs.New(errdefs.Busy, "configure "+name, "the definition was changed by somebody else meanwhile").
				WithHint("zone config edit %s", name)
		}
		*z = edited
		return nil
	})
}

// openEditor runs the user's editor on a file. The variable may hold arguments
// too; no shell reads it.
func (a *app) openEditor(ctx context.Context, file string) error {
	words := strings.Fields(firstOf(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(words) == 0 {
		words = []string{"vi"}
	}
	_, err := a.runner.Run(ctx, host.Cmd{
		Name: words[0], Args: append(words[1:], file), Stdin: a.stdin, Stdout: a.stderr, Stderr: a.stderr, Foreground: true,
	})
	if err != nil {
		return errdefs.Wrap(errdefs.Failed, "edit with "+words[0], err).WithHint("EDITOR=nano zone config edit NAME")
	}
	return nil
}

// askAgain shows what is wrong and asks whether to go on editing. Without a
// terminal there is nobody to ask: the edit is given up.
func (a *app) askAgain(problem error) bool {
	if !ui.IsTerminal(a.stdin) {
		return false
	}
	a.report(problem)
	fmt.Fprint(a.stderr, "edit again? [Y/n] ")
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	return err == nil && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "n")
}
