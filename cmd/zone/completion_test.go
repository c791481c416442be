package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// words offers fixed names, whatever stands before.
func words(list ...string) completer {
	return func(context.Context, []string) []string { return append([]string(nil), list...) }
}

func TestShellAnswer(t *testing.T) {
	const plain = cobra.ShellCompDirectiveNoFileComp
	const open = plain | cobra.ShellCompDirectiveNoSpace
	zones := words("db1", "web1", "web2")
	for _, tt := range []struct {
		name      string
		f         completer
		args      []string
		typed     string
		want      []string
		directive cobra.ShellCompDirective
	}{
		{"prefix", zones, nil, "we", []string{"web1", "web2"}, plain},
		{"first only", nth(zones), []string{"web1"}, "", nil, plain},
		{"second kind", nth(zones, configKeys("=")), []string{"web1"}, "max-l", []string{"max-lwps="}, open},
		{"last kind goes on", nth(zones, words("a", "b")), []string{"web1", "a"}, "", []string{"b"}, plain},
		{"no file names", words(), nil, "x", nil, plain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cobra.Command{}
			c.SetContext(t.Context())
			got, directive := shellAnswer(tt.f)(c, tt.args, tt.typed)
			if d := cmp.Diff(tt.want, got); d != "" || directive != tt.directive {
				t.Errorf("directive %v\n%s", directive, d)
			}
		})
	}
}

// A command that is renamed must not lose its completion without a word.
func TestCompletionsNameCommands(t *testing.T) {
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	root := newRootCommand(a)
	for path := range completions(names{a}) {
		c, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) != 0 || c == root {
			t.Errorf("no command %q", path)
		} else if c.ValidArgsFunction == nil {
			t.Errorf("%q offers nothing; is addCompletions called?", path)
		}
	}
}

// The shell asks on hosts that have no zones, too; that must not make a home.
func TestCompletionOnAnEmptyHome(t *testing.T) {
	home := t.TempDir()
	var out strings.Builder
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: io.Discard}
	if code := a.main(t.Context(), []string{"__complete", "--home", home, "--run", home + "/run", "boot", ""}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if got := out.String(); got != ":4\n" {
		t.Errorf("offers %q", got)
	}
}
