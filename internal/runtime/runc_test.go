package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
)

type runcWorld struct {
	*Runc
	runner        *hosttest.Runner
	state, bundle string
	log           *os.File
}

func newRunc(t *testing.T, calls ...hosttest.Call) runcWorld {
	t.Helper()
	dir := t.TempDir()
	w := runcWorld{state: filepath.Join(dir, "state"), bundle: filepath.Join(dir, "bundle")}
	for _, d := range []string{w.state, w.bundle} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range calls {
		for j, a := range calls[i].Argv {
			calls[i].Argv[j] = strings.NewReplacer("STATE", w.state, "BUNDLE", w.bundle).Replace(a)
		}
	}
	var err error
	if w.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.log.Close() })
	w.runner = hosttest.NewRunner(t, calls...)
	w.Runc = &Runc{Path: "/usr/sbin/runc", StateDir: w.state, Runner: w.runner}
	return w
}

func (w runcWorld) write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.bundle, file), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func argv(words string) []string { return strings.Fields(words) }

const withLog = "/usr/sbin/runc --root STATE --log BUNDLE/runc.log --log-format json "

func TestCreate(t *testing.T) {
	var seen host.Cmd
	var w runcWorld
	w = newRunc(t, hosttest.Call{
		Argv: argv(withLog + "create --bundle BUNDLE --pid-file BUNDLE/pid web1"),
		Do: func(c host.Cmd) error {
			seen = c
			if _, err := os.Stat(filepath.Join(w.bundle, "runc.log")); err == nil {
				t.Error("the log of the last call is there")
			}
			w.write(t, "pid", "4711")
			return nil
		},
	})
	w.write(t, "runc.log", "old")
	pid, err := w.Create(t.Context(), "web1", w.bundle, w.log)
	if err != nil || pid != 4711 {
		t.Errorf("%d, %v", pid, err)
	}
	null, ok := seen.Stdin.(*os.File)
	if !seen.LeavesChildren || seen.Stdout != w.log || seen.Stderr != w.log || !ok || null.Name() != os.DevNull {
		t.Errorf("%+v", seen)
	}
}

func TestCreateWithoutPid(t *testing.T) {
	for _, content := range []string{"", "x", "-"} {
		var w runcWorld
		w = newRunc(t, hosttest.Call{Argv: argv("/usr/sbin/runc"), Prefix: true, Do: func(host.Cmd) error {
			if content != "-" {
				w.write(t, "pid", content)
			}
			return nil
		}})
		if pid, err := w.Create(t.Context(), "web1", w.bundle, w.log); err == nil || pid != 0 {
			t.Errorf("%q: %d, %v", content, pid, err)
		}
	}
}

// The reason stands in the log, for standard error may belong to the zone.
func TestErrorComesFromTheLog(t *testing.T) {
	for _, c := range []struct{ log, want string }{
		{`{"level":"error","msg":"no such image","time":"x"}` + "\n", "runc start: no such image"},
		{`{"level":"error","msg":"first"}` + "\n" + `{"level":"warning","msg":"no"}` + "\n" + `{"level":"error","msg":"last"}` + "\n", "runc start: last"},
		{`{"level":"error","msg":"whole"}` + "\n" + `{"level":"error","msg":"cut o`, "runc start: whole"},
		{`{"level":"warning","msg":"only a warning"}`, "runc start: /usr/sbin/runc: exit code 1: said"},
		{"not JSON\n", "runc start: /usr/sbin/runc: exit code 1: said"},
		{"", "runc start: /usr/sbin/runc: exit code 1: said"},
	} {
		var w runcWorld
		w = newRunc(t, hosttest.Call{
			Argv: argv(withLog + "start web1"), Result: host.Result{ExitCode: 1, Stderr: "said\n"},
			Do: func(host.Cmd) error { w.write(t, "runc.log", c.log); return nil },
		})
		if err := w.Start(t.Context(), "web1", w.bundle); err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.log, err, c.want)
		}
	}
}

func TestCancelledIsTold(t *testing.T) {
	w := newRunc(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Start(ctx, "web1", w.bundle); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestDelete(t *testing.T) {
	w := newRunc(t)
	if err := w.Delete(t.Context(), "web1"); err != nil { // gone already: no call
		t.Error(err)
	}
	for _, code := range []int{0, 1} {
		var w runcWorld
		w = newRunc(t, hosttest.Call{
			Argv: argv("/usr/sbin/runc --root STATE delete --force web1"), Result: host.Result{ExitCode: code},
			Do: func(host.Cmd) error {
				if code == 0 {
					return os.RemoveAll(filepath.Join(w.state, "web1"))
				}
				return nil
			},
		})
		for _, id := range []string{"web1", "web2"} {
			if err := os.MkdirAll(filepath.Join(w.state, id, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Delete(t.Context(), "web1"); err != nil || w.Known("web1") || !w.Known("web2") {
			t.Errorf("exit code %d: %v", code, err)
		}
	}
}

func TestExecArgv(t *testing.T) {
	r := &Runc{Path: "/usr/sbin/runc", StateDir: "/s"}
	for _, c := range []struct {
		o    ExecOptions
		want string
	}{
		{ExecOptions{Args: []string{"ls", "-l"}}, "/usr/sbin/runc --root /s exec web1 ls -l"},
		{
			ExecOptions{Args: []string{"sh"}, Env: []string{"A=1", "B=2"}, Dir: "/srv", User: "1:2", Terminal: true, PidFile: "/p"},
			"/usr/sbin/runc --root /s exec --tty --pid-file /p --cwd /srv --user 1:2 --env A=1 --env B=2 web1 sh",
		},
		{ExecOptions{}, "/usr/sbin/runc --root /s exec web1"},
	} {
		if got := r.ExecArgv("web1", c.o); !slices.Equal(got, argv(c.want)) {
			t.Errorf("%q, want %s", got, c.want)
		}
	}
}

func TestFindMissing(t *testing.T) {
	if _, err := host.LookPath("runc"); err == nil {
		t.Setenv("PATH", "/nowhere")
	}
	r, err := Find("/s", nil)
	if err != nil && (!errdefs.Is(err, errdefs.NotSupported) || errdefs.HintOf(err) == "") {
		t.Errorf("%v", err)
	}
	if err == nil && !filepath.IsAbs(r.Path) {
		t.Errorf("path %q", r.Path)
	}
}
