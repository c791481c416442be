package zone

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host/hosttest"
	"zone/internal/runtime"
)

var execNothing = runtime.ExecOptions{}

// A process may be called anything, also what looks like the rest of its stat.
func TestStartTick(t *testing.T) {
	hosttest.Require(t, hosttest.Tool("sleep"))
	sleep, err := exec.LookPath("sleep")
	must(err)
	want := func() uint64 {
		tick, _, err := startTick(os.Getpid())
		if err != nil || tick == 0 {
			t.Fatalf("own start: %d, %v", tick, err)
		}
		return tick
	}()
	for _, name := range []string{"plain", "a) b (c", ") R 1 2 3", "((((", "new\nline", "a b c d e f g"} {
		link := filepath.Join(t.TempDir(), name)
		must(os.Symlink(sleep, link))
		cmd := exec.Command(link, "60")
		must(cmd.Start())
		time.Sleep(5 * time.Millisecond)
		tick, state, err := startTick(cmd.Process.Pid)
		if err != nil || tick < want || tick > want+100*3600 || !strings.ContainsRune("SRD", rune(state)) {
			t.Errorf("%q: %d (own %d), %c, %v", name, tick, want, state, err)
		}
		run := running{PID: cmd.Process.Pid, StartTick: tick}
		if !run.alive() {
			t.Errorf("%q counts as dead", name)
		}
		if other := (running{PID: run.PID, StartTick: tick + 1}); other.alive() {
			t.Errorf("%q: a later process of the number counts as the zone's", name)
		}
		must(cmd.Process.Kill())
		for range 200 { // a zombie until it is waited for
			if !run.alive() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if run.alive() {
			t.Errorf("%q: a zombie counts as alive", name)
		}
		if _, err := run.open(); err != unix.ESRCH {
			t.Errorf("open of a zombie: %v", err)
		}
		_ = cmd.Wait()
		if _, _, err := startTick(run.PID); err == nil {
			t.Errorf("%q: start of a process that is gone", name)
		}
	}
}

func TestLimitMismatches(t *testing.T) {
	none := cgroup.Limits{Memory: -1, Swap: -1, Pids: -1}
	with := func(f func(*cgroup.Limits)) cgroup.Limits { l := none; f(&l); return l }
	for _, c := range []struct {
		name string
		want runtime.Limits
		got  cgroup.Limits
		bad  string
	}{
		{"nothing asked", runtime.Limits{}, none, ""},
		{"nothing asked, defaults held", runtime.Limits{}, cgroup.Limits{CPUWeight: 100, Memory: 5, Swap: 5, Pids: 5}, ""},
		{"cpu", runtime.Limits{CPUs: 1.5}, with(func(l *cgroup.Limits) { l.CPUQuota = 1.5 }), ""},
		{"cpu not held", runtime.Limits{CPUs: 1.5}, none, "capped-cpu.ncpus"},
		{"cpu wrong", runtime.Limits{CPUs: 0.5}, with(func(l *cgroup.Limits) { l.CPUQuota = 0.502 }), "capped-cpu.ncpus"},
		{"weight by way of shares", runtime.Limits{Weight: 33}, with(func(l *cgroup.Limits) { l.CPUWeight = 34 }), ""},
		{"weight", runtime.Limits{Weight: 33}, with(func(l *cgroup.Limits) { l.CPUWeight = 100 }), "cpu-shares"},
		{"memory in pages", runtime.Limits{Memory: 1<<20 + 5}, with(func(l *cgroup.Limits) { l.Memory = 1 << 20 }), ""},
		{"memory not held", runtime.Limits{Memory: 1 << 20}, none, "capped-memory.physical"},
		{"huge memory", runtime.Limits{Memory: 1 << 40}, with(func(l *cgroup.Limits) { l.Memory = 1<<40 - 8192 }), "capped-memory.physical"},
		{"pids", runtime.Limits{Pids: 10}, with(func(l *cgroup.Limits) { l.Pids = 11 }), "max-lwps"},
		{"no swap held", runtime.Limits{Swap: -1}, with(func(l *cgroup.Limits) { l.Swap = 0 }), ""},
		{"no swap not held", runtime.Limits{Swap: -1}, none, "capped-memory.swap"},
		{"swap", runtime.Limits{Swap: 1 << 20}, with(func(l *cgroup.Limits) { l.Swap = 1 << 20 }), ""},
		{"swap not held", runtime.Limits{Swap: 1 << 20}, none, "capped-memory.swap"},
		{"two", runtime.Limits{CPUs: 1, Pids: 1}, none, "capped-cpu.ncpus: asked 1, holds 0; max-lwps: asked 1, holds -1"},
	} {
		got := strings.Join(limitMismatches(c.want, c.got), "; ")
		if (c.bad == "") != (got == "") || !strings.Contains(got, c.bad) {
			t.Errorf("%s: %q, want %q", c.name, got, c.bad)
		}
	}
}

func TestLimitsOf(t *testing.T) {
	zero, some := config.Size(0), config.Size(1<<20)
	for _, c := range []struct {
		swap *config.Size
		want int64
	}{{nil, 0}, {&zero, -1}, {&some, 1 << 20}} {
		if got := limitsOf(config.Zone{CappedMemory: config.CappedMemory{Swap: c.swap}}); got.Swap != c.want {
			t.Errorf("swap %v: %d", c.swap, got.Swap)
		}
	}
}

// breakages leaves a zone in every state that it can be found in.
var breakages = map[string]struct {
	damage func(at Place)
	state  State
}{
	"whole":             {func(Place) {}, Installed},
	"no record":         {func(at Place) { must(os.Remove(at.activePath(recordFile))) }, Incomplete},
	"empty record":      {func(at Place) { put(at.activePath(recordFile), "") }, Unavailable},
	"cut-off record":    {func(at Place) { put(at.activePath(recordFile), `{"schema":1,"na`) }, Unavailable},
	"record of later":   {func(at Place) { put(at.activePath(recordFile), `{"schema":2}`) }, Unavailable},
	"no dataset":        {func(at Place) { must(at.Pool.Delete(context.Background(), at.active())) }, Incomplete},
	"no configuration":  {func(at Place) { must(os.Remove(at.activePath(configFile))) }, Installed},
	"bad configuration": {func(at Place) { put(at.activePath(configFile), "= ;") }, Installed},
	"no upper":          {func(at Place) { must(os.RemoveAll(at.activePath("upper"))) }, Installed},
}

func TestStatusAndDeleteFromEveryState(t *testing.T) {
	for name, c := range breakages {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(t, "a")
			must(w.Snapshot(t.Context(), "a", "s"))
			c.damage(w.at(t, "a"))
			list, err := w.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			st := list[0]
			if st.State != c.state || st.Name != "a" || st.Snapshots != 1 || (st.Why != "") != (c.state != Installed) {
				t.Errorf("%+v, want %s", st, c.state)
			}
			if name != "whole" {
				if err := w.Boot(t.Context(), "a"); err == nil || c.state != Installed && !errdefs.Is(err, errdefs.WrongState) {
					t.Errorf("boot: %v", err)
				}
				if left := names(filepath.Join(w.Run, "zones")); len(left) > 0 {
					t.Errorf("a boot that failed left %v", left)
				}
			}
			if err := w.Delete(t.Context(), "a", false); err != nil {
				t.Fatal(err)
			}
			w.whole(t)
			w.create(t, "a")
		})
	}
}

func TestRollbackOfBroken(t *testing.T) {
	for name, c := range breakages {
		if name == "no dataset" {
			continue // nothing to exchange
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(t, "a")
			must(w.Snapshot(t.Context(), "a", "s"))
			c.damage(w.at(t, "a"))
			if _, err := w.Rollback(t.Context(), "a", "s", "broken"); err != nil {
				t.Fatal(err)
			}
			if st, err := w.State(t.Context(), "a"); st != Installed {
				t.Errorf("%s, %v", st, err)
			}
			if _, err := readConfig(w.at(t, "a").activePath("")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRollback(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(t, "a")
	put(w.upper(t, "a", "data"), "1")
	must(w.Snapshot(ctx, "a", "s1"))
	put(w.upper(t, "a", "data"), "2")
	must(w.Snapshot(ctx, "a", "s2"))
	must(w.UpdateConfig(ctx, "a", func(z config.Zone) (config.Zone, error) { z.Description = "kept"; return z, nil }))
	before := w.record(t, "a")
	if _, err := w.Rollback(ctx, "a", "s1", "s2"); !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("a snapshot would be replaced: %v", err)
	}
	kept, err := w.Rollback(ctx, "a", "s1", "")
	if err != nil || !strings.HasPrefix(kept, "before-rollback-") {
		t.Fatal(kept, err)
	}
	r := w.record(t, "a")
	if get(w.upper(t, "a", "data")) != "1" || r.Address != before.Address || r.UUID != before.UUID {
		t.Errorf("%+v", r)
	}
	if z, err := w.LoadConfig(ctx, "a"); err != nil || z.Description != "kept" {
		t.Errorf("the configuration was rolled back: %+v, %v", z, err)
	}
	if _, err := w.Rollback(ctx, "a", kept, "x"); err != nil || get(w.upper(t, "a", "data")) != "2" {
		t.Errorf("back again: %v", err)
	}
	list, err := w.Snapshots(ctx, "a")
	if err != nil || len(list) != 4 {
		t.Errorf("%+v, %v", list, err)
	}
	w.whole(t)
}

func TestSnapshotTwice(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	must(w.Snapshot(t.Context(), "a", "s"))
	put(w.upper(t, "a", "data"), "x")
	if err := w.Snapshot(t.Context(), "a", "s"); !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(w.pool(t).Path("zones/a/@s/upper/data")); err == nil {
		t.Error("a snapshot was replaced")
	}
}

func TestUpdateConfigRefusesBad(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	before := get(w.at(t, "a").activePath(configFile))
	err := w.UpdateConfig(t.Context(), "a", func(z config.Zone) (config.Zone, error) { z.MaxLWPs = -4; return z, nil })
	if err == nil || get(w.at(t, "a").activePath(configFile)) != before {
		t.Errorf("%v", err)
	}
}

// From here on roots are mounted.

func TestLife(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	w := newWorld(t)
	w.playKernel(t)
	ctx := t.Context()
	w.create(t, "a")
	must(os.MkdirAll(w.Home, 0o700))
	state := func(want State) {
		t.Helper()
		if st, err := w.State(ctx, "a"); st != want {
			t.Errorf("%s, %v; want %s", st, err, want)
		}
	}
	must(w.Boot(ctx, "a"))
	state(Running)
	for what, err := range map[string]error{
		"boot": w.Boot(ctx, "a"), "ready": w.Ready(ctx, "a"), "delete": w.Delete(ctx, "a", false), "rollback": func() error {
			must(w.Snapshot(ctx, "a", "s"))
			_, err := w.Rollback(ctx, "a", "s", "")
			return err
		}(),
	} {
		if !errdefs.Is(err, errdefs.WrongState) {
			t.Errorf("%s of a running zone: %v", what, err)
		}
	}
	j, err := w.begin(opHalt, DefaultPool, "a")
	must(err)
	state(ShuttingDown)
	j.end()
	must(w.Halt(ctx, "a"))
	state(Installed)
	must(w.Ready(ctx, "a"))
	state(Ready)
	must(w.Boot(ctx, "a"))
	state(Running)
	must(w.Halt(ctx, "a"))
	m := Maintenance{w.Service}
	must(m.Mount(ctx, "a", true, false))
	state(Mounted)
	must(m.Unmount(ctx, "a"))
	state(Installed)
	must(m.Unmount(ctx, "a"))

	// Its first process ends by itself.
	must(w.Boot(ctx, "a"))
	run, err := w.readRunning("a")
	must(err)
	must(unix.Kill(run.PID, unix.SIGKILL))
	for range 500 {
		if !run.alive() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	state(Down)
	w.notes = nil
	must(w.Mend(ctx))
	if len(w.notes) != 1 || !strings.Contains(w.notes[0], "zone a had ended by itself") {
		t.Errorf("notes %q", w.notes)
	}
	state(Installed)
	must(w.Boot(ctx, "a"))
	must(w.Delete(ctx, "a", true))
	w.whole(t)
	for _, dir := range []string{"engine", "net", "run/zones", "host/sys/fs/cgroup/zone" + HomeTag(w.Home)} {
		if left := names(filepath.Join(w.base, dir)); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
}

// Whichever part of a boot fails, all of it is taken back.
func TestFailedBoot(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	boom := errdefs.New(errdefs.Failed, "test", "boom")
	for _, at := range []string{"engine create", "engine create done", "Attach", "Attach done", "engine start", "engine start done"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t)
			w.playKernel(t)
			w.create(t, "a")
			w.hook = func(call string) error {
				if call == at {
					return boom
				}
				return nil
			}
			if err := w.Boot(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "boom") {
				t.Errorf("%v", err)
			}
			w.hook = nil
			w.whole(t)
			if err := w.stopped(t); err != nil {
				t.Error(err)
			}
			if st, _ := w.State(t.Context(), "a"); st != Installed {
				t.Errorf("the zone is %s", st)
			}
			must(w.Boot(t.Context(), "a"))
			must(w.Halt(t.Context(), "a"))
		})
	}
}

// The fake engine sets memory.max and no other limit: the one that is not held
// must be told.
func TestLimitsAreReadBack(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	w := newWorld(t)
	w.playKernel(t)
	w.create(t, "a")
	set := func(f func(*config.Zone)) {
		must(w.UpdateConfig(t.Context(), "a", func(z config.Zone) (config.Zone, error) { f(&z); return z, nil }))
	}
	set(func(z *config.Zone) { z.CappedMemory.Physical = 64 << 20 })
	if err := w.Boot(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	must(w.Halt(t.Context(), "a"))
	set(func(z *config.Zone) { z.MaxLWPs = 99 })
	err := w.Boot(t.Context(), "a")
	if !errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(err.Error(), "max-lwps: asked 99") {
		t.Errorf("%v", err)
	}
	if err := w.stopped(t); err != nil {
		t.Error(err)
	}
}

// TestParseStatExiting: the first process of a zone that is being killed waits
// for all others, and looks as if it slept.
func TestParseStatExiting(t *testing.T) {
	for flags, want := range map[string]byte{"4194560": 'S', "4194564": 'X', "4": 'X', "0": 'S'} {
		line := "7 (a) b (c) S 1 7 7 0 -1 " + flags + " 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"
		tick, state, err := parseStat([]byte(line))
		if err != nil || tick != 4711 || state != want {
			t.Errorf("flags %s: tick %d, state %c, %v; want state %c", flags, tick, state, err, want)
		}
	}
	if _, _, err := parseStat([]byte("7 (x) S 1")); err == nil {
		t.Error("a short line is taken")
	}
}
