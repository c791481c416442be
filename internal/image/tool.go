package image

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// runTool runs a program that must not outlive this process, which may be
// killed: the program runs in a process namespace that the kernel ends with
// us, and in a mount namespace that goes with it, so that what it mounts in
// the new root is never left behind.
func runTool(ctx context.Context, r host.Runner, c host.Cmd) (host.Result, error) {
	tool := c.Name
	c.Args = append([]string{
		"--pdeathsig", "KILL", "--",
		"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", tool,
	}, c.Args...)
	c.Name = "setpriv"
	var res host.Result
	err := onKeptThread(func() (err error) {
		res, err = r.Run(ctx, c)
		return err
	})
	if w, ok := c.Stderr.(*lineWriter); ok {
		w.flush()
	}
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return res, ctx.Err()
	case res.ExitCode < 0: // setpriv itself did not start
		return res, errdefs.Wrap(errdefs.NotSupported, "run "+tool, err).WithHint("apt-get install util-linux")
	}
	return res, fmt.Errorf("%s: exit code %d: %s", tool, res.ExitCode, complaint(res.Stderr))
}

// complaint chooses the lines of a program's output that say most: where it
// marks its errors the first of them, for the others follow from it, and
// otherwise the last lines.
func complaint(stderr string) string {
	var all, causes []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		all = append(all, line)
		text, marked := strings.CutPrefix(line, "E: ")
		if marked && !strings.HasSuffix(text, " failed") && !strings.HasSuffix(text, " failed to run") {
			causes = append(causes, text)
		}
	}
	if len(causes) > 0 {
		return strings.Join(causes[:min(2, len(causes))], "; ")
	}
	return strings.Join(all[max(0, len(all)-3):], "; ")
}

// onKeptThread runs f on a thread that lives as long as f does. A program
// started by f with a parent-death signal would otherwise get that signal
// when Go ends the thread that happened to start it.
func onKeptThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// lineWriter calls line for each line written to it, ended by a newline or,
// as progress bars do, a carriage return. Only one program writes to it.
type lineWriter struct {
	line func(string)
	rest []byte
}

const longestLine = 4096

// Write never fails.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		end := bytes.IndexAny(w.rest, "\r\n")
		if end < 0 && len(w.rest) < longestLine {
			return len(p), nil
		}
		if end < 0 {
			w.flush()
			return len(p), nil
		}
		if end > 0 {
			w.line(string(w.rest[:end]))
		}
		w.rest = w.rest[end+1:]
	}
}

// flush tells a last line that had no end.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.line(string(w.rest))
	}
	w.rest = nil
}
