// Package probe finds out what this host offers to zones, by trying where
// trying is cheap. Nothing it does stays: what it makes lives in namespaces
// and mounts of its own that end with it.
package probe

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zone/internal/host"
)

// Status says how far a feature is there.
type Status string

// The statuses.
const (
	Present Status = "present"
	Partial Status = "partial" // there, but limited or switched off
	Missing Status = "missing"
)

// Check is what was found out about one feature.
type Check struct {
	Name     string `json:"feature"`
	Status   Status `json:"status"`
	Detail   string `json:"detail"`   // a version, a value, the kernel's answer
	Needed   string `json:"needed"`   // what in zone uses it
	Fix      string `json:"fix"`      // what to do; empty when present
	Required bool   `json:"required"` // no zone boots without it
}

// Options says where to look.
type Options struct {
	Root   string      // where /proc, /sys and /dev are found: "/" outside tests
	Dir    string      // where zone keeps its state; its file system is tried too
	Runner host.Runner // for versions of tools
	// Look finds a program; nil looks through PATH.
	Look func(name string) (path string, err error)
}

// feature is a check to be made: test gives status and detail.
type feature struct {
	name, needed, fix string
	required          bool
	test              func(ctx context.Context, o Options) (Status, string)
}

// Run makes all checks, several at a time, and returns them in a fixed order.
func Run(ctx context.Context, o Options) []Check {
	if o.Look == nil {
		o.Look = exec.LookPath
	}
	all := features()
	checks := make([]Check, len(all))
	var g errgroup.Group
	g.SetLimit(8)
	for i, f := range all {
		g.Go(func() error {
			checks[i] = f.check(ctx, o)
			return nil
		})
	}
	_ = g.Wait()
	return checks
}

func (f feature) check(ctx context.Context, o Options) Check {
	status, detail := f.test(ctx, o)
	c := Check{Name: f.name, Status: status, Detail: detail, Needed: f.needed, Required: f.required}
	if status != Present {
		c.Fix = f.fix
	}
	return c
}

func features() []feature {
	var all []feature
	for _, group := range [][]feature{
		rights(), namespaces(), cgroups(), storage(), runtimes(), network(), watching(), images(),
	} {
		all = append(all, group...)
	}
	return all
}

// read returns the content of a file below the root, without white space
// around it.
func (o Options) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(o.Root, name))
	return strings.TrimSpace(string(b)), err
}

func (o Options) exists(name string) bool {
	_, err := os.Stat(filepath.Join(o.Root, name))
	return err == nil
}

// present turns a yes or no into a status.
func present(ok bool, detail string) (Status, string) {
	if ok {
		return Present, detail
	}
	return Missing, detail
}

// tried turns the outcome of trying into a status.
func tried(err error, detail string) (Status, string) {
	if err != nil {
		return Missing, err.Error()
	}
	return Present, detail
}

// tool looks for a program and, with arguments, for the first line it prints.
func tool(name string, args ...string) func(context.Context, Options) (Status, string) {
	return func(ctx context.Context, o Options) (Status, string) {
		path, err := o.Look(name)
		if err != nil {
			return Missing, "no program " + name
		}
		if len(args) == 0 {
			return Present, path
		}
		version, err := o.version(ctx, path, args...)
		if err != nil {
			return Partial, err.Error()
		}
		return Present, version
	}
}

// patience is what one program may take: on a busy host the first start of a
// large one, read from a slow disk, takes seconds.
const patience = 15 * time.Second

func (o Options) version(ctx context.Context, path string, args ...string) (string, error) {
	res, err := o.Runner.Run(ctx, host.Cmd{Name: path, Args: args, Timeout: patience})
	line, _, _ := strings.Cut(strings.TrimSpace(res.Stdout), "\n")
	return line, err
}

// anyTool is present when one of several programs is there.
func anyTool(names ...string) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		var found []string
		for _, n := range names {
			if _, err := o.Look(n); err == nil {
				found = append(found, n)
			}
		}
		return present(len(found) > 0, strings.Join(found, ", "))
	}
}
