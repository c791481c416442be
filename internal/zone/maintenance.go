package zone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/runtime"
)

// Maintenance is the service as somebody uses it who keeps a zone to himself
// over many steps: Lock first, then the other methods, which take the lock as
// held. It is what patching works with.
type Maintenance struct {
	S *Service
}

// State returns the zone's present state.
func (m Maintenance) State(ctx context.Context, name string) (string, error) {
	st, err := m.S.State(ctx, name)
	return string(st), err
}

// Lock takes the zone's lock and mends what an interrupted command left.
func (m Maintenance) Lock(ctx context.Context, name, op string) (unlock func(), err error) {
	l, err := m.S.lock(ctx, op, name)
	if err != nil {
		return nil, err
	}
	return l.unlock, nil
}

// Snapshot keeps the zone's root as NAME@snap. It refuses when the next boot is
// to use another root.
func (m Maintenance) Snapshot(ctx context.Context, name, snap string) error {
	if err := m.S.refusePending(ctx, name); err != nil {
		return err
	}
	return m.S.snapshotLocked(ctx, name, snap)
}

// HasSnapshot reports whether NAME@snap is there.
func (m Maintenance) HasSnapshot(ctx context.Context, name, snap string) (bool, error) {
	_, err := m.S.findSnapshot(ctx, name, snap)
	if err == nil {
		return true, nil
	}
	if _, gone := m.S.Find(ctx, name); gone != nil || !errdefs.Is(err, errdefs.NotFound) {
		return false, err
	}
	return false, nil
}

// DeleteSnapshot removes NAME@snap; one that is gone is success.
func (m Maintenance) DeleteSnapshot(ctx context.Context, name, snap string) error {
	at, err := m.S.Find(ctx, name)
	if err != nil {
		return err
	}
	if err := at.Pool.Delete(ctx, at.dataset("@"+snap)); err != nil {
		return err
	}
	m.S.tidyLayers(ctx, at.Pool)
	return nil
}

// RollbackTo makes the root what it was at NAME@snap and keeps the present one
// as NAME@keepAs.
func (m Maintenance) RollbackTo(ctx context.Context, name, snap, keepAs string) error {
	_, err := m.S.rollbackLocked(ctx, name, snap, keepAs)
	return err
}

// Boot starts an installed zone.
func (m Maintenance) Boot(ctx context.Context, name string) error { return m.S.bootLocked(ctx, name) }

// Halt ends a running zone at once; one that does not run is success.
func (m Maintenance) Halt(ctx context.Context, name string) error {
	return m.stop(ctx, "halt", name, func(running) {})
}

// Shutdown has a running zone end by itself, with a deadline; one that does
// not run is success.
func (m Maintenance) Shutdown(ctx context.Context, name string) error {
	return m.stop(ctx, "shutdown", name, m.S.graceful(ctx, name))
}

func (m Maintenance) stop(ctx context.Context, op, name string, ask func(running)) error {
	if _, err := m.S.readRunning(name); err != nil {
		return nil
	}
	return m.S.stopLocked(ctx, op, name, ask)
}

// Mount takes an installed zone to the state mounted: files, limits and a
// place for programs, no service of its own. With quietSync, fsync and its kin
// do nothing in it.
func (m Maintenance) Mount(ctx context.Context, name string, quietSync, network bool) error {
	return m.S.start(ctx, "mount", name, startSpec{mode: modeScratch, quietSync: quietSync, network: network})
}

// Unmount takes a mounted zone back to installed and puts all it wrote on
// disk. One that is not mounted is success.
func (m Maintenance) Unmount(ctx context.Context, name string) error {
	run, err := m.S.readRunning(name)
	if err != nil || run.Mode != modeScratch {
		return nil
	}
	if err := m.S.stopLocked(ctx, "unmount", name, func(running) {}); err != nil {
		return err
	}
	at, err := m.S.Find(ctx, name)
	if err != nil {
		return err
	}
	return at.Pool.Sync(ctx)
}

// execMark names one Exec in the environment of everything it starts.
const execMark = "ZONE_EXEC_ID="

// Exec runs a program in a running or mounted zone, inside its cgroup. When
// ctx ends, the program and all it started are killed.
func (m Maintenance) Exec(ctx context.Context, name string, c host.Cmd) (host.Result, error) {
	mark := execMark + newID()
	argv, err := m.S.ExecArgv(name, runtime.ExecOptions{
		Args: append([]string{c.Name}, c.Args...), Env: append(c.Env, mark), Dir: c.Dir,
	})
	if err != nil {
		return host.Result{ExitCode: -1}, err
	}
	c.Name, c.Args, c.Env, c.Dir = argv[0], argv[1:], nil, ""
	res, err := m.S.Runner.Run(ctx, c)
	if res.ExitCode < 0 {
		m.killMarked(name, mark)
	}
	return res, err
}

// killMarked kills the processes of a zone that carry the mark, until none is
// left: some may be starting others meanwhile.
func (m Maintenance) killMarked(name, mark string) {
	for range 50 {
		pids, err := m.S.group(name).Procs()
		if err != nil {
			return
		}
		found := false
		for _, pid := range pids {
			found = killIfMarked(pid, mark) || found
		}
		if !found {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func killIfMarked(pid int, mark string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer closeFd(fd)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark)) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// Root opens the files of a running or mounted zone.
func (m Maintenance) Root(_ context.Context, name string) (*host.Root, error) { return m.S.Root(name) }

// CPU reads the counters of a running or mounted zone's cgroup: CPU time used,
// time that some process waited for a CPU, and the part of that which the
// zone's own cap caused. hasWaited is false where the host does not tell.
func (m Maintenance) CPU(_ context.Context, name string) (used, waited, throttled time.Duration, hasWaited bool, err error) {
	st, err := m.S.group(name).ReadStat()
	if err != nil {
		return 0, 0, 0, false, err
	}
	return st.CPU, max(st.CPUPressure, 0), st.Throttled, st.CPUPressure >= 0, nil
}

// SharedDir returns the directory that the zone sees read-only at SharedMount.
func (m Maintenance) SharedDir(ctx context.Context, name string) (string, error) {
	at, err := m.S.Find(ctx, name)
	if err != nil {
		return "", err
	}
	return m.S.ensureShared(ctx, at.Pool, name)
}

// Store returns the directory for files that are hard-linked into SharedDir.
func (m Maintenance) Store(ctx context.Context, name string) (string, error) {
	shared, err := m.SharedDir(ctx, name)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(shared)), "store")
	err = os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return dir, err
}
