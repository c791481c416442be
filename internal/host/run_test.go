package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func sh(script string) Cmd { return Cmd{Name: "sh", Args: []string{"-c", script}} }

func TestExecResults(t *testing.T) {
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	dir := t.TempDir()
	for _, c := range []struct {
		name          string
		cmd           Cmd
		code          int
		out, err, say string
	}{
		{"output", sh("echo out; echo err >&2"), 0, "out\n", "err\n", ""},
		{"exit code", sh("echo a >&2; echo b >&2; echo c >&2; echo d >&2; exit 7"), 7, "", "a\nb\nc\nd\n", "sh: exit code 7: b; c; d"},
		{"silent failure", sh("exit 1"), 1, "", "", "sh: exit code 1"},
		{"signal", sh("kill -TERM $$"), -1, "", "", "sh: signal: terminated"},
		{"C locale", sh("echo $LC_ALL"), 0, "C\n", "", ""},
		{"environment", Cmd{Name: "sh", Args: []string{"-c", "echo $LC_ALL $X"}, Env: []string{"X=1", "LC_ALL=POSIX"}}, 0, "POSIX 1\n", "", ""},
		{"directory", Cmd{Name: "pwd", Dir: dir}, 0, dir + "\n", "", ""},
		{"stdin", Cmd{Name: "cat", Stdin: strings.NewReader("in")}, 0, "in", "", ""},
		{"no stdin", Cmd{Name: "cat"}, 0, "", "", ""},
		{"no shell", Cmd{Name: "printf", Args: []string{"%s", "$(id); `id` *"}}, 0, "$(id); `id` *", "", ""},
		{"missing program", Cmd{Name: "no-such-program"}, -1, "", "", "no-such-program: exec: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := Exec{}.Run(t.Context(), c.cmd)
			if res.ExitCode != c.code || res.Stdout != c.out || res.Stderr != c.err {
				t.Errorf("%+v", res)
			}
			var ce *CommandError
			if c.say == "" && err != nil || c.say != "" && (!errors.As(err, &ce) || !strings.HasPrefix(err.Error(), c.say) || ce.ExitCode != c.code) {
				t.Errorf("%v", err)
			}
		})
	}
	_, err := Exec{}.Run(t.Context(), Cmd{Name: "no-such-program"})
	if !IsMissing(err) || IsMissing(errors.New("x")) {
		t.Errorf("not missing: %v", err)
	}
}

func TestExecWritersAndTail(t *testing.T) {
	var out, errs bytes.Buffer
	cmd := sh("i=0; while [ $i -lt 3000 ]; do echo \"line $i ..............................................\" >&2; i=$((i+1)); done; echo out; exit 3")
	cmd.Stdout, cmd.Stderr = &out, &errs
	res, err := Exec{}.Run(t.Context(), cmd)
	if out.String() != "out\n" || res.Stdout != "" || strings.Count(errs.String(), "\n") != 3000 {
		t.Errorf("out %q, %d lines", out.String(), strings.Count(errs.String(), "\n"))
	}
	if len(res.Stderr) != keptStderr || !strings.HasSuffix(errs.String(), res.Stderr) {
		t.Errorf("a tail of %d bytes", len(res.Stderr))
	}
	if err == nil || !strings.Contains(err.Error(), "line 2999") || strings.Contains(err.Error(), "line 2996") {
		t.Errorf("%v", err)
	}
}

// ended waits a little for a process to end.
func ended(pid int) bool {
	for range 200 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, fs.ErrNotExist) || bytes.Contains(b, []byte(") Z ")) {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// grandchild is a script that notes the number of a process of its own.
func grandchild(t *testing.T, then string) (cmd Cmd, pid func() int) {
	file := filepath.Join(t.TempDir(), "pid")
	cmd = sh("sleep 60 & echo $! > " + file + ".new; mv " + file + ".new " + file + "; " + then)
	t.Cleanup(func() {
		if b, err := os.ReadFile(file); err == nil {
			n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	})
	return cmd, func() int {
		for range 400 {
			if b, err := os.ReadFile(file); err == nil {
				n, err := strconv.Atoi(strings.TrimSpace(string(b)))
				must(t, err)
				return n
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Fatal("no grandchild")
		return 0
	}
}

func TestExecTimeoutEndsTheWholeGroup(t *testing.T) {
	cmd, pid := grandchild(t, "wait")
	cmd.Timeout = 300 * time.Millisecond
	start := time.Now()
	res, err := Exec{}.Run(t.Context(), cmd)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no end after 300ms") || res.ExitCode != -1 {
		t.Errorf("%+v, %v", res, err)
	}
	if time.Since(start) > 4*time.Second {
		t.Errorf("took %s", time.Since(start))
	}
	if !ended(pid()) {
		t.Error("the grandchild lives")
	}
}

func TestExecCancel(t *testing.T) {
	cmd, pid := grandchild(t, "wait")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	_, err := Exec{}.Run(ctx, cmd)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if !ended(pid()) {
		t.Error("the grandchild lives")
	}
	if _, err := (Exec{}).Run(ctx, sh("touch "+filepath.Join(t.TempDir(), "f"))); !errors.Is(err, context.Canceled) {
		t.Errorf("started although cancelled: %v", err)
	}
}

// A daemon that keeps the pipes open is no failure of what started it.
func TestExecOutputKeptOpen(t *testing.T) {
	cmd, pid := grandchild(t, "echo done")
	start := time.Now()
	res, err := Exec{}.Run(t.Context(), cmd)
	if err != nil || res.Stdout != "done\n" || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if time.Since(start) > 4*time.Second {
		t.Errorf("took %s", time.Since(start))
	}
	if unix.Kill(pid(), 0) != nil {
		t.Error("the daemon was killed")
	}
	cmd, _ = grandchild(t, "exit 5")
	if res, err := (Exec{}).Run(t.Context(), cmd); err == nil || res.ExitCode != 5 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestExecLeavesChildren(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	defer log.Close()
	cmd, pid := grandchild(t, "echo said; echo also >&2")
	cmd.Stdout, cmd.Stderr, cmd.LeavesChildren = log, log, true
	start := time.Now()
	res, err := Exec{}.Run(t.Context(), cmd)
	if err != nil || res.Stdout != "" || res.Stderr != "" || time.Since(start) > time.Second {
		t.Errorf("%+v, %v after %s", res, err, time.Since(start))
	}
	if data, _ := os.ReadFile(log.Name()); string(data) != "said\nalso\n" {
		t.Errorf("%q", data)
	}
	if unix.Kill(pid(), 0) != nil {
		t.Error("the child was killed")
	}
}

func TestExecCPU(t *testing.T) {
	res, err := Exec{}.Run(t.Context(), sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
	if err != nil || res.CPU <= 0 || res.CPU > time.Minute {
		t.Errorf("%s, %v", res.CPU, err)
	}
}

func TestLookPath(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	if p, err := LookPath("no-such-program"); !IsMissing(err) {
		t.Errorf("%q, %v", p, err)
	}
}
