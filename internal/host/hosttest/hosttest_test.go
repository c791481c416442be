package hosttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/internal/host"
)

// fake records what a test would have been told.
type fake struct {
	testing.TB
	name    string
	skipped string
	failed  []string
	cleanup []func()
}

func (f *fake) Helper()                     {}
func (f *fake) Name() string                { return f.name }
func (f *fake) Skip(args ...any)            { f.skipped = fmt.Sprint(args...) }
func (f *fake) Error(args ...any)           { f.failed = append(f.failed, fmt.Sprint(args...)) }
func (f *fake) Errorf(s string, a ...any)   { f.failed = append(f.failed, fmt.Sprintf(s, a...)) }
func (f *fake) Fatalf(s string, a ...any)   { f.Errorf(s, a...); panic(f) }
func (f *fake) Cleanup(c func())            { f.cleanup = append(f.cleanup, c) }
func (f *fake) run(test func(t testing.TB)) { defer func() { _ = recover() }(); test(f) }

func TestRequire(t *testing.T) {
	none := Tool("no-such-program-here")
	for _, tt := range []struct {
		must         string
		skips, fails bool
	}{
		{"", true, false},
		{"btrfs,TestOther", true, false},
		{"all", false, true},
		{"btrfs, tool:no-such-program-here", false, true},
		{"TestX", false, true},
		{"TestX/part", false, true},
	} {
		t.Run(tt.must, func(t *testing.T) {
			skips := filepath.Join(t.TempDir(), "skips")
			t.Setenv(MustEnv, tt.must)
			t.Setenv(SkipsEnv, skips)
			f := &fake{name: "TestX/part"}
			f.run(func(t testing.TB) { Require(t, Tool("sh"), none) })
			if (f.skipped != "") != tt.skips || (len(f.failed) > 0) != tt.fails {
				t.Errorf("skipped %q, failed %q", f.skipped, f.failed)
			}
			noted, _ := os.ReadFile(skips)
			if want := "TestX/part\tneeds the program no-such-program-here\n"; tt.skips && string(noted) != want {
				t.Errorf("noted %q, want %q", noted, want)
			}
		})
	}
}

func TestRunner(t *testing.T) {
	ctx := context.Background()
	r := NewRunner(t, Call{Argv: []string{"mount", "-t"}, Prefix: true}, Call{
		Argv: []string{"nft"}, Result: host.Result{ExitCode: 2, Stderr: "no"},
	})
	r.Expect("out\n", "runc", "list")
	if _, err := r.Run(ctx, host.Cmd{Name: "mount", Args: []string{"-t", "tmpfs"}}); err != nil {
		t.Error(err)
	}
	var failed *host.CommandError
	if _, err := r.Run(ctx, host.Cmd{Name: "nft"}); !errors.As(err, &failed) || failed.ExitCode != 2 || failed.Stderr != "no" {
		t.Errorf("failing command: %v", err)
	}
	var out strings.Builder
	res, err := r.Run(ctx, host.Cmd{Name: "runc", Args: []string{"list"}, Stdout: &out})
	if err != nil || out.String() != "out\n" || res.Stdout != "" {
		t.Errorf("stdout: %q %q %v", out.String(), res.Stdout, err)
	}
	if len(r.Seen()) != 3 {
		t.Errorf("seen: %v", r.Seen())
	}
}

func TestRunnerFailsOnSurprises(t *testing.T) {
	f := &fake{}
	r := NewRunner(f, Call{Argv: []string{"mount", "a"}})
	for _, args := range [][]string{{"b"}, {"a", "b"}, {}} {
		if _, err := r.Run(context.Background(), host.Cmd{Name: "mount", Args: args}); err == nil {
			t.Errorf("mount %v was let through", args)
		}
	}
	for _, c := range f.cleanup {
		c()
	}
	if len(f.failed) != 4 { // three surprises and one call that never came
		t.Errorf("failures: %q", f.failed)
	}
}

func TestDiff(t *testing.T) {
	before := HostState{Mounts: []string{"a", "b", "b"}, Links: []string{"lo"}}
	after := HostState{Mounts: []string{"a", "a", "b", "b"}, Links: nil, Loops: []string{"loop0 /x"}}
	want := "+ mount a\n- link lo\n+ loop device loop0 /x\n"
	if got := Diff(before, after); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Diff(after, after); got != "" {
		t.Errorf("no change: %q", got)
	}
}

// What a test leaves must show, so the snapshot is held against real changes.
func TestSnapshotSeesChanges(t *testing.T) {
	Require(t, Root, Network, Tool("ip"), CgroupV1)
	name := fmt.Sprintf("zt%d", os.Getpid())
	mine := func(e string) bool { return strings.Contains(e, name) }
	before := Snapshot(t, "init", "systemd").Only(mine)
	group := filepath.Join("/sys/fs/cgroup/pids", name)
	if err := os.Mkdir(group, 0o755); err != nil {
		Skip(t, fmt.Sprintf("pids hierarchy is elsewhere: %v", err))
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	ip := func(args ...string) {
		if _, err := (host.Exec{}).Run(context.Background(), host.Cmd{Name: "ip", Args: args}); err != nil {
			t.Fatal(err)
		}
	}
	ip("link", "add", name, "type", "bridge")
	t.Cleanup(func() { ip("link", "del", name) })
	want := "+ cgroup " + group + "\n+ link " + name + "\n"
	if got := Diff(before, Snapshot(t).Only(mine)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
