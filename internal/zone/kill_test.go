package zone

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
)

// childEnv makes the test program carry out one operation and kill itself in
// the middle of it.
const childEnv = "ZONE_TEST_KILLED_CHILD"

type killed struct {
	Base string
	Op   []string
	At   int // the how manieth call of a fake is the last
}

func TestMain(m *testing.M) {
	if order := os.Getenv(childEnv); order != "" {
		var k killed
		must(json.Unmarshal([]byte(order), &k))
		os.Exit(k.run())
	}
	os.Exit(m.Run())
}

func (k killed) run() int {
	w := openWorld(k.Base)
	n := 0
	w.hook = func(string) error {
		if n++; n == k.At {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	if err := w.do(context.Background(), k.Op); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// do carries out an operation given as words.
func (w *world) do(ctx context.Context, op []string) error {
	switch name := op[1]; op[0] {
	case "create":
		return w.Create(ctx, CreateSpec{Name: name, Image: "base"})
	case "clone":
		return w.Clone(ctx, name, op[2:])
	case "snapshot":
		return w.Snapshot(ctx, name, op[2])
	case "rollback":
		_, err := w.Rollback(ctx, name, op[2], op[3])
		return err
	case "delete":
		return w.Delete(ctx, name, true)
	case "boot":
		return w.Boot(ctx, name)
	case "ready":
		return w.Ready(ctx, name)
	case "halt":
		return w.Halt(ctx, name)
	case "be create":
		return w.CreateBE(ctx, BESpec{Zone: name, Name: op[2], From: op[3]})
	case "be activate":
		_, err := w.ActivateBE(ctx, name, op[2])
		return err
	case "send":
		return w.sendFile(ctx, name, op[2])
	case "move":
		w.Runner = host.Exec{}
		return w.Move(ctx, name, op[2])
	case "receive":
		return w.receiveFile(ctx, name, op[2])
	case "mount":
		return Maintenance{w.Service}.Mount(ctx, name, true, false)
	}
	panic("unknown operation " + op[0])
}

// killAt carries op out in another process that is killed at the nth call, and
// reports whether it was.
func (w *world) killAt(t *testing.T, n int, op []string) bool {
	t.Helper()
	order, err := json.Marshal(killed{w.base, op, n})
	must(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(order))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%v: %v\n%s", op, err, out)
	}
	return true
}

// killEverywhere kills op at each call in turn, each time in a new world made
// by prepare, mends, and checks.
func killEverywhere(t *testing.T, op []string, prepare func(*testing.T, *world), check func(*testing.T, *world)) {
	t.Parallel()
	for n := 1; ; n++ {
		w := newWorld(t)
		prepare(t, w)
		was := w.killAt(t, n, op)
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if err := w.Mend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if was && len(w.notes) == 0 {
				// Nothing to say is right only where nothing was begun.
				w.note("-")
			}
			w.whole(t)
			said := len(w.notes)
			if err := w.Mend(t.Context()); err != nil || len(w.notes) != said {
				t.Errorf("mending twice: %v, %q", err, w.notes[said:])
			}
			check(t, w)
			w.whole(t)
			if t.Failed() {
				t.Logf("killed: %v, notes: %q", was, w.notes)
			}
		})
		if !was {
			if n < 3 {
				t.Errorf("only %d places to kill at", n-1)
			}
			return
		}
	}
}

func (w *world) exists(t *testing.T, name string) bool {
	_, err := os.Stat(w.at(t, name).dir())
	return err == nil
}

// finish repeats a creating operation if the zone is not there.
func (w *world) finish(t *testing.T, name string, op ...string) {
	t.Helper()
	err := w.do(t.Context(), op)
	if w.exists(t, name) && errdefs.Is(err, errdefs.WrongState) {
		return
	}
	if err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestKilledCreate(t *testing.T) {
	for _, name := range []string{"a", "active", "layer-1"} {
		t.Run(name, func(t *testing.T) {
			killEverywhere(t, []string{"create", name}, func(*testing.T, *world) {}, func(t *testing.T, w *world) {
				w.finish(t, name, "create", name)
				if st, err := w.State(t.Context(), name); st != Installed {
					t.Errorf("%s is %s, %v", name, st, err)
				}
			})
		})
	}
}

func TestKilledClone(t *testing.T) {
	prepare := func(t *testing.T, w *world) {
		w.create(t, "a")
		put(w.upper(t, "a", "srv/data"), "1")
	}
	killEverywhere(t, []string{"clone", "a", "b", "c"}, prepare, func(t *testing.T, w *world) {
		for _, n := range []string{"b", "c"} {
			w.finish(t, n, "clone", "a", n)
			r := w.record(t, n)
			if r.ClonedOf != "a" || len(r.Layers) != 1 {
				t.Errorf("%s: %+v", n, r)
			}
			layer := w.pool(t).Path("layers/" + r.Layers[0])
			if got := get(filepath.Join(layer, "upper/srv/data")); got != "1" {
				t.Errorf("%s stands on %q", n, got)
			}
		}
	})
}

func TestKilledRollback(t *testing.T) {
	prepare := func(t *testing.T, w *world) {
		w.create(t, "a")
		put(w.upper(t, "a", "data"), "old")
		must(w.Snapshot(t.Context(), "a", "s"))
		put(w.upper(t, "a", "data"), "new")
	}
	killEverywhere(t, []string{"rollback", "a", "s", "kept"}, prepare, func(t *testing.T, w *world) {
		kept := filepath.Join(w.at(t, "a").dir(), "@kept/upper/data")
		switch now, before := get(w.upper(t, "a", "data")), get(kept); {
		case now == "new" && strings.Contains(before, "no such file"):
		case now == "old" && before == "new":
		default:
			t.Errorf("active %q, kept %q", now, before)
		}
		if _, err := w.Rollback(t.Context(), "a", "s", "again"); err != nil {
			t.Error(err)
		}
		if now := get(w.upper(t, "a", "data")); now != "old" {
			t.Errorf("rolled back again: %q", now)
		}
	})
}

func TestKilledDelete(t *testing.T) {
	prepare := func(t *testing.T, w *world) {
		w.create(t, "a")
		put(w.upper(t, "a", "data"), "x")
		must(w.Clone(t.Context(), "a", []string{"b"}))
		put(w.upper(t, "b", "data"), "y")
		must(w.Snapshot(t.Context(), "b", "s"))
		put(w.logPath("b"), "log")
		put(filepath.Join(w.pool(t).Path("shared"), "zones/b/file"), "cached")
	}
	killEverywhere(t, []string{"delete", "b"}, prepare, func(t *testing.T, w *world) {
		if w.exists(t, "b") { // all of it, then
			if get(w.upper(t, "b", "data")) != "y" || len(names(w.at(t, "b").dir())) != 2 {
				t.Error("half deleted")
			}
			if err := w.Delete(t.Context(), "b", false); err != nil {
				t.Error(err)
			}
		}
		for _, f := range []string{w.logPath("b"), filepath.Join(w.pool(t).Path("shared"), "zones/b")} {
			if _, err := os.Stat(f); err == nil {
				t.Errorf("%s stays", f)
			}
		}
		if len(w.layers(t)) != 0 {
			t.Errorf("layers %v", w.layers(t))
		}
		w.create(t, "b")
	})
}

// Booting mounts the root, so it takes root.
func TestKilledBoot(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	for _, op := range []string{"boot", "ready", "mount", "halt", "delete", "boot again"} {
		t.Run(op, func(t *testing.T) {
			prepare := func(t *testing.T, w *world) {
				w.playKernel(t)
				w.create(t, "a")
				switch op {
				case "halt", "delete":
					must(w.Boot(t.Context(), "a"))
				case "boot again":
					must(w.Ready(t.Context(), "a"))
				}
			}
			word := strings.TrimSuffix(op, " again")
			killEverywhere(t, []string{word, "a"}, prepare, func(t *testing.T, w *world) {
				if w.exists(t, "a") {
					if err := w.stopped(t); err != nil {
						t.Error(err)
					}
					must(w.Boot(t.Context(), "a"))
					must(w.Delete(t.Context(), "a", true))
				}
				for _, dir := range []string{"engine", "net", "run/zones", "host/sys/fs/cgroup/zone" + HomeTag(w.Home)} {
					if left := names(filepath.Join(w.base, dir)); len(left) > 0 {
						t.Errorf("left in %s: %v", dir, left)
					}
				}
			})
		})
	}
}

// stopped halts the zone a unless it is installed with nothing left of it.
func (w *world) stopped(t *testing.T) error {
	st, err := w.State(t.Context(), "a")
	if err != nil {
		return err
	}
	if st != Installed {
		return w.Halt(t.Context(), "a")
	}
	for _, dir := range []string{"engine", "net", "run/zones"} {
		if left := names(filepath.Join(w.base, dir)); len(left) > 0 {
			return fmt.Errorf("installed, but left in %s: %v", dir, left)
		}
	}
	return nil
}
