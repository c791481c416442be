package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zone/internal/config"
	"zone/internal/patch"
	"zone/internal/zone"
)

// completer offers the words that may stand at a place of the command line.
// args are those before it.
type completer func(ctx context.Context, args []string) []string

// completions says what each command takes as arguments. Commands that are not
// listed take none that could be known.
func completions(n names) map[string]completer {
	many := func(c completer) completer {
		return func(ctx context.Context, args []string) []string { return without(c(ctx, args), args) }
	}
	first := func(c completer) completer { return nth(c) } // reads better below
	table := map[string]completer{
		"snapshot": first(func(ctx context.Context, _ []string) []string { return suffixed(n.zones(ctx, nil), "@") }),
		"rollback": first(n.snapshots),
		"exec":     first(n.zones), "login": first(n.zones), "log": first(n.zones), "clone": first(n.zones), "send": first(n.zones), "move": nth(n.zones, n.pools),
		"config show": nth(n.zones, configKeys("")), "config set": nth(n.zones, configKeys("=")),
		"config clear": nth(n.zones, configKeys("")), "config verify": first(n.zones), "config export": first(n.zones),
		"config add": nth(n.zones, fixed("device", "fs"), nothing), "config remove": nth(n.zones, fixed("device", "fs"), nothing),
		"config edit": first(n.zones), "config diff": first(n.zones), "config apply": first(n.zones), "config revert": first(n.zones),
		"patch": many(n.zones), "patch show": first(n.runs), "patch rollback": nth(n.runs, n.zones),
		"pool status": first(n.pools), "pool destroy": first(n.pools),
		"image show": first(n.images), "image delete": many(n.images),
	}
	for _, verb := range []string{"boot", "halt", "shutdown", "reboot", "ready", "delete", "list", "snapshots"} {
		table[verb] = many(n.zones)
	}
	return table
}

// flagCompletions says what the values of flags are, in whatever command.
func flagCompletions(n names) map[string]completer {
	return map[string]completer{
		"image": n.images, "pool": n.pools, "zone": n.zones, "resume": n.runs,
		"format": fixed("table", "json", "jsonl"),
		"set":    configKeys("="),
	}
}

// addCompletions lets the shell offer real names behind the commands of root.
func addCompletions(root *cobra.Command, a *app) {
	n := names{a}
	table, flags := completions(n), flagCompletions(n)
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		if f, ok := table[strings.Join(path, " ")]; ok && c.ValidArgsFunction == nil {
			c.ValidArgsFunction = shellAnswer(f)
		}
		for name, f := range flags {
			if c.Flags().Lookup(name) != nil || c.PersistentFlags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, shellAnswer(f)) // fails only when it is there already
			}
		}
		for _, sub := range c.Commands() {
			walk(sub, append(slices.Clone(path), sub.Name()))
		}
	}
	walk(root, nil)
}

func shellAnswer(f completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		directive := cobra.ShellCompDirectiveNoFileComp
		var fit []string
		for _, w := range f(cmd.Context(), args) {
			if strings.HasPrefix(w, typed) {
				fit = append(fit, w)
			}
		}
		if slices.ContainsFunc(fit, func(w string) bool { return strings.HasSuffix(w, "=") || strings.HasSuffix(w, "@") }) {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return fit, directive
	}
}

// nth offers the words of cs[i] at argument i. The last one goes on for all
// further arguments when there is more than one.
func nth(cs ...completer) completer {
	return func(ctx context.Context, args []string) []string {
		i := len(args)
		if len(cs) > 1 {
			i = min(i, len(cs)-1)
		}
		if i >= len(cs) {
			return nil
		}
		return without(cs[i](ctx, args), args)
	}
}

func nothing(context.Context, []string) []string { return nil }

func fixed(words ...string) completer {
	return func(context.Context, []string) []string { return words }
}

// configKeys offers the keys of zone definitions; attr.NAME stands for many
// and is offered as far as it is known.
func configKeys(suffix string) completer {
	return func(context.Context, []string) []string {
		var words []string
		for _, k := range config.Keys() {
			if name, open := strings.CutSuffix(k.Name, "NAME"); !open {
				words = append(words, name+suffix)
			}
		}
		return words
	}
}

func without(words, taken []string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return slices.Contains(taken, w) })
}

func suffixed(words []string, suffix string) []string {
	for i := range words {
		words[i] += suffix
	}
	return words
}

// names reads what exists, for completion: it changes nothing, mends nothing,
// and offers nothing where that is not allowed or fails.
type names struct{ a *app }

// open returns the service, inside the private mount namespace. That starts
// the program again, with the same question of the shell.
func (n names) open() (*zone.Service, bool) {
	if !n.exists("pools") || os.Geteuid() != 0 || n.a.enter() != nil {
		return nil, false
	}
	s, err := n.a.service()
	return s, err == nil
}

// exists reports whether a file of the home is there, so that a question from
// the shell never makes a home.
func (n names) exists(leaf string) bool {
	if n.a.settle() != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(n.a.home, leaf))
	return !errors.Is(err, os.ErrNotExist)
}

func (n names) zones(ctx context.Context, _ []string) []string {
	s, ok := n.open()
	if !ok {
		return nil
	}
	places, err := s.Places(ctx)
	if err != nil {
		return nil
	}
	words := make([]string, len(places))
	for i, p := range places {
		words[i] = p.Name
	}
	return words
}

func (n names) snapshots(ctx context.Context, _ []string) []string {
	s, ok := n.open()
	if !ok {
		return nil
	}
	var words []string
	for _, name := range n.zones(ctx, nil) {
		list, err := s.Snapshots(ctx, name)
		if err != nil {
			continue
		}
		for _, snap := range list {
			words = append(words, snap.Zone+"@"+snap.Name)
		}
	}
	return words
}

func (n names) pools(context.Context, []string) []string {
	if n.a.settle() != nil {
		return nil
	}
	words, _ := n.a.pools().Names()
	return words
}

// images offers each image by its name and by name and version.
func (n names) images(ctx context.Context, _ []string) []string {
	s, ok := n.open()
	if !ok {
		return nil
	}
	var words []string
	for _, pool := range n.pools(ctx, nil) {
		p, err := s.Pools.Open(ctx, pool)
		if err != nil {
			continue
		}
		list, _ := s.Images(p).List(ctx)
		for _, img := range list {
			words = append(words, img.Name, img.Ref())
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// runs offers patch runs, newest first.
func (n names) runs(context.Context, []string) []string {
	if !n.exists("patch") {
		return nil
	}
	list, err := (&patch.Engine{Dir: filepath.Join(n.a.home, "patch")}).List()
	if err != nil {
		return nil
	}
	words := make([]string, len(list))
	for i, r := range list {
		words[len(list)-1-i] = r.Run
	}
	return words
}
