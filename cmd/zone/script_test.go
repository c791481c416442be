package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"zone": main})
}

// TestScripts plays testdata/script/*.txtar: command lines as users type them
// that end before they touch the machine, so they need no rights.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ZONE_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("ZONE_RUN", filepath.Join(e.WorkDir, "run"))
			e.Setenv("NO_COLOR", "1")
			return nil
		},
		Condition: func(cond string) (bool, error) { return cond == "root" && os.Geteuid() == 0, nil },
		Cmds:      map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program and holds it to an exit code and to an empty standard
// output: exits CODE PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = -1
		if coded, ok := err.(interface{ ExitCode() int }); ok {
			got = coded.ExitCode()
		}
	}
	if got != want {
		ts.Fatalf("%v ends with %d, want %d", args[1:], got, want)
	}
	if out := ts.ReadFile("stdout"); out != "" && want != 0 {
		ts.Fatalf("%v prints as answer: %q", args[1:], out)
	}
}
