package hosttest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"zone/internal/host"
)

// Call is one expected start of a program and what comes of it.
type Call struct {
	Argv   []string // program and arguments
	Prefix bool     // Argv is only the beginning of what is expected
	Result host.Result
	Err    error // nil with an ExitCode other than 0: a *host.CommandError
	// Do, when set, runs before the result is given: it plays what the
	// program does to files.
	Do func(host.Cmd) error
}

// Runner plays outside programs from a script of calls that must come in
// order. A call that is not next in the script, and one that never came, fail
// the test. It may be used from several goroutines.
type Runner struct {
	t testing.TB

	mu    sync.Mutex // guards the fields below
	calls []Call
	seen  [][]string
}

var _ host.Runner = (*Runner)(nil)

// NewRunner returns a Runner with the script.
func NewRunner(t testing.TB, calls ...Call) *Runner {
	r := &Runner{t: t, calls: calls}
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.calls {
			t.Errorf("never started: %s", strings.Join(c.Argv, " "))
		}
	})
	return r
}

// Expect adds a call of exactly argv that succeeds and prints stdout.
func (r *Runner) Expect(stdout string, argv ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, Call{Argv: argv, Result: host.Result{Stdout: stdout}})
}

// Seen returns the calls that came so far, as argument vectors.
func (r *Runner) Seen() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// Run plays the next call of the script.
func (r *Runner) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	argv := append([]string{c.Name}, c.Args...)
	if err := ctx.Err(); err != nil {
		return host.Result{ExitCode: -1}, &host.CommandError{Argv: argv, ExitCode: -1, Err: err}
	}
	call, err := r.next(argv)
	if err == nil && call.Do != nil {
		err = call.Do(c)
	}
	if err != nil {
		r.t.Error(err)
		return host.Result{ExitCode: -1}, &host.CommandError{Argv: argv, ExitCode: -1, Err: err}
	}
	return play(c, argv, call)
}

func (r *Runner) next(argv []string) (Call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, argv)
	if len(r.calls) == 0 {
		return Call{}, fmt.Errorf("unexpected call: %q", argv)
	}
	call := r.calls[0]
	if !matches(call, argv) {
		return Call{}, fmt.Errorf("unexpected call: %q, expected %q", argv, call.Argv)
	}
	r.calls = r.calls[1:]
	return call, nil
}

func matches(c Call, argv []string) bool {
	if c.Prefix && len(argv) > len(c.Argv) {
		argv = argv[:len(c.Argv)]
	}
	return slices.Equal(c.Argv, argv)
}

// play gives output and end the way host.Exec does.
func play(c host.Cmd, argv []string, call Call) (host.Result, error) {
	res := call.Result
	if c.Stdout != nil {
		_, _ = io.WriteString(c.Stdout, res.Stdout)
		res.Stdout = ""
	}
	if c.Stderr != nil {
		_, _ = io.WriteString(c.Stderr, res.Stderr)
	}
	switch {
	case call.Err != nil:
		return res, call.Err
	case res.ExitCode != 0:
		return res, &host.CommandError{
			Argv: argv, ExitCode: res.ExitCode, Stderr: res.Stderr,
			Err: fmt.Errorf("exit status %d", res.ExitCode),
		}
	}
	return res, nil
}
