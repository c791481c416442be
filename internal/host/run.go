// Package host is the only door to the machine: outside commands, files that
// must not be half written, paths inside an untrusted root, locks, the private
// mount namespace and feature probes. Packages above it never call os/exec and
// never join paths below a zone's root themselves.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Cmd is one call of an outside program. Args go to the program as they are;
// no shell is involved.
type Cmd struct {
	Name   string
	Args   []string
	Dir    string
	Env    []string // added to the environment, after LC_ALL=C
	Stdin  io.Reader
	Stdout io.Writer // nil: kept in Result.Stdout
	Stderr io.Writer // nil: kept in Result.Stderr; otherwise written and the tail kept
	// Timeout ends the command's process group; zero means none of its own.
	Timeout time.Duration
	// DiesWithCaller has the kernel kill the command when the thread that runs
	// it ends, which is when this process is killed. The caller must be locked
	// to a thread, as in WithThrowawayMounts: others end at Go's pleasure.
	DiesWithCaller bool
	// LeavesChildren says that the command ends before the processes it
	// started do, and that these keep its output: Stdout and Stderr must be
	// files then, and nothing is captured.
	LeavesChildren bool
	// Foreground leaves the command in the caller's process group, where it
	// may use the terminal. Stdin, Stdout and Stderr are passed as they are.
	Foreground bool
}

// Result is what a command printed and how it ended.
type Result struct {
	Stdout   string
	Stderr   string
	ExitCode int
	// CPU is the user and system time of the command and the children it
	// waited for.
	CPU time.Duration
}

// Runner starts outside programs. The real one is Exec; tests use
// hosttest.Runner.
type Runner interface {
	Run(ctx context.Context, c Cmd) (Result, error)
}

// CommandError tells which command failed, how, and its last words.
type CommandError struct {
	Argv     []string
	ExitCode int // -1 when it did not start or was killed
	Stderr   string
	Err      error
}

// Error shows the program, how it ended and the end of what it said.
func (e *CommandError) Error() string {
	how := fmt.Sprintf("exit code %d", e.ExitCode)
	if e.ExitCode < 0 {
		how = e.Err.Error()
	}
	if tail := lastLines(e.Stderr, 3); tail != "" {
		return fmt.Sprintf("%s: %s: %s", e.Argv[0], how, tail)
	}
	return fmt.Sprintf("%s: %s", e.Argv[0], how)
}

// Unwrap returns the error of starting or waiting.
func (e *CommandError) Unwrap() error { return e.Err }

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}

// Exec runs programs on this machine with the C locale, in a process group of
// their own, so that cancelling the context ends their children too.
type Exec struct{}

const keptStderr = 64 << 10

// Run starts the command and waits for it.
func (Exec) Run(ctx context.Context, c Cmd) (Result, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, c.Name, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), c.Env...)
	cmd.Stdin = c.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.DiesWithCaller {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second

	var out bytes.Buffer
	cmd.Stdout = c.Stdout
	if c.Stdout == nil {
		cmd.Stdout = &out
	}
	tail := &tailWriter{max: keptStderr}
	cmd.Stderr = tail
	if c.Stderr != nil {
		cmd.Stderr = io.MultiWriter(c.Stderr, tail)
	}
	if c.LeavesChildren || c.Foreground {
		cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
	}
	if c.Foreground {
		cmd.SysProcAttr.Setpgid = false
		cmd.Cancel = func() error { return cmd.Process.Kill() }
	}

	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well and left something running that holds its output
	}
	res := Result{Stdout: out.String(), Stderr: tail.String()}
	if cmd.ProcessState != nil {
		res.ExitCode = cmd.ProcessState.ExitCode()
		res.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err == nil {
		return res, nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
		if errors.Is(err, context.DeadlineExceeded) && c.Timeout > 0 {
			err = fmt.Errorf("no end after %s: %w", c.Timeout, err)
		}
		res.ExitCode = -1
	} else if cmd.ProcessState == nil {
		res.ExitCode = -1
	}
	return res, &CommandError{
		Argv: append([]string{c.Name}, c.Args...), ExitCode: res.ExitCode, Stderr: res.Stderr, Err: err,
	}
}

// tailWriter keeps the last max bytes written to it.
type tailWriter struct {
	max int
	buf []byte
}

func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - w.max; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

func (w *tailWriter) String() string { return string(w.buf) }

// LookPath finds a program on the PATH, or where system programs are kept when
// the PATH of a plain user leaves that out.
func LookPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(dir + "/" + name); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
