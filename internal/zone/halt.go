package zone

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/runtime"
)

// teardownPatience bounds the time that processes may take to die of SIGKILL.
const teardownPatience = 20 * time.Second

// Halt stops a zone at once, without running any script inside.
func (s *Service) Halt(ctx context.Context, name string) error {
	return s.stop(ctx, "halt", name, func(running) {})
}

// Kill ends all processes of a zone without waiting for whoever works on it;
// that command then sees the zone end under its hands.
func (s *Service) Kill(ctx context.Context, name string) error {
	if _, err := s.Find(ctx, name); err != nil {
		return err
	}
	kctx, cancel := context.WithTimeout(ctx, teardownPatience)
	defer cancel()
	return s.group(name).Kill(kctx)
}

// Shutdown has the zone run its own shutdown, and halts it when that takes
// longer than its shutdown-timeout.
func (s *Service) Shutdown(ctx context.Context, name string) error {
	return s.stop(ctx, "shutdown", name, s.graceful(ctx, name))
}

// graceful returns what asks a running zone to end by itself.
func (s *Service) graceful(ctx context.Context, name string) func(running) {
	return func(run running) {
		patience := time.Duration(run.Limits.ShutdownTimeout)
		if err := s.askToStop(ctx, name, run, patience); err != nil {
			s.Note("zone %s: %v; halting it", name, err)
		}
	}
}

// stop takes a zone that runs, is ready or mounted back to installed.
func (s *Service) stop(ctx context.Context, op, name string, ask func(running)) error {
	l, err := s.lock(ctx, op, name)
	if err != nil {
		return err
	}
	defer l.unlock()
	return s.stopLocked(ctx, op, name, ask)
}

func (s *Service) stopLocked(ctx context.Context, op, name string, ask func(running)) error {
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	run, err := s.readRunning(name)
	if err != nil {
		return errdefs.New(errdefs.WrongState, op+" "+name, "the zone is %s; allowed when it is running", s.status(at).State)
	}
	j, err := s.begin(opHalt, at.Pool.Info().Name, name)
	if err != nil {
		return err
	}
	if run.alive() && run.Mode == modeBoot {
		ask(run)
	}
	// Once begun it is finished even if the user loses patience: a zone half
	// torn down helps nobody.
	if err := s.teardown(context.WithoutCancel(ctx), name); err != nil {
		j.lock.Unlock()
		return err
	}
	j.end()
	return nil
}

func (s *Service) askToStop(ctx context.Context, name string, run running, patience time.Duration) error {
	fd, err := run.open()
	if err != nil {
		return nil // gone already
	}
	defer unix.Close(fd)
	cmd := run.InitKind.stopCommand()
	if cmd == nil {
		if err := unix.PidfdSendSignal(fd, powerOffSignal, nil, 0); err != nil {
			return err
		}
		return waitEnd(ctx, fd, patience)
	}
	argv := s.Engine.ExecArgv(name, runtime.ExecOptions{Args: cmd})
	_, err = s.Runner.Run(ctx, host.Cmd{Name: argv[0], Args: argv[1:], Timeout: patience})
	if run.InitKind == initNone {
		if errors.Is(err, context.DeadlineExceeded) {
			return errors.New("its services did not stop in time")
		}
		return nil // the small init itself has nothing to shut down
	}
	if err != nil {
		return err
	}
	return waitEnd(ctx, fd, patience)
}

// waitEnd waits until the process of a pidfd has ended.
func waitEnd(ctx context.Context, fd int, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left := min(time.Until(deadline), 200*time.Millisecond)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(left, 0)/time.Millisecond))
		switch {
		case n > 0:
			return nil
		case err != nil && err != unix.EINTR:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return errors.New("it did not shut down within " + patience.String())
		}
	}
}

// teardown removes every trace of a zone's processes: they are killed, then
// the engine's record, cgroups, link and run directory go. Each step takes
// "gone already" for success, so it may be repeated from any point.
func (s *Service) teardown(ctx context.Context, name string) error {
	kctx, cancel := context.WithTimeout(ctx, teardownPatience)
	defer cancel()
	run, runErr := s.readRunning(name)
	if err := s.removeProcesses(kctx, name); err != nil {
		return err
	}
	if runErr == nil && run.alive() {
		// Never seen: a first process outside of its cgroup.
		if err := s.killFirst(kctx, run); err != nil {
			return err
		}
	}
	if link := s.linkOf(ctx, name, run); link != "" {
		if err := s.Network.Detach(ctx, link); err != nil {
			return err
		}
	}
	if err := s.removeRunDir(name); err != nil {
		return err
	}
	return s.releasePlatform(ctx)
}

// removeProcesses kills what is in the zone's cgroups and removes them with
// the engine's record. An engine that was killed together with a boot can have
// one more process join while it dies: then all is done again.
func (s *Service) removeProcesses(ctx context.Context, name string) error {
	group := s.group(name)
	for {
		if err := group.Kill(ctx); err != nil {
			return errdefs.Wrap(errdefs.Busy, "stop "+name, err)
		}
		if err := s.Engine.Delete(ctx, name); err != nil {
			return err
		}
		err := group.Remove()
		if !errdefs.Is(err, errdefs.Busy) || ctx.Err() != nil {
			return err
		}
		if populated, _ := group.Populated(); !populated {
			return err
		}
	}
}

func (s *Service) killFirst(ctx context.Context, run running) error {
	fd, err := run.open()
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return err
	}
	return waitEnd(ctx, fd, teardownPatience)
}

// linkOf finds the name of the zone's link on the host, from the run-time
// record or, when a boot was cut off before it was written, from the zone.
func (s *Service) linkOf(ctx context.Context, name string, run running) string {
	if run.HostLink != "" {
		return run.HostLink
	}
	at, err := s.Find(ctx, name)
	if err != nil {
		return ""
	}
	r, err := readRecord(at.activePath(""))
	if err != nil {
		return ""
	}
	return s.hostLink(r)
}

// removeRunDir removes the run directory. The mount point in it is removed
// with rmdir and nothing stronger: should a root ever be mounted there, it is
// not emptied.
func (s *Service) removeRunDir(name string) error {
	dir := s.runDir(name)
	if err := os.RemoveAll(filepath.Join(dir, "bundle")); err != nil {
		return err
	}
	for _, f := range []string{filepath.Join(dir, "run.json"), filepath.Join(dir, "root")} {
		if err := removeIfThere(f); err != nil {
			return err
		}
	}
	leftovers, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, l := range leftovers {
		if err := os.Remove(filepath.Join(dir, l.Name())); err != nil {
			return err
		}
	}
	return removeIfThere(dir)
}

// releasePlatform removes what all zones of this home share once none is left:
// the bridge, its rules, and the parent cgroup.
func (s *Service) releasePlatform(ctx context.Context) error {
	if err := s.Network.ReleaseUnused(ctx); err != nil {
		return err
	}
	l, err := host.TryLock(s.platformLock())
	if err != nil {
		return nil // a zone is being started: it keeps the parent
	}
	defer l.Unlock()
	s.Cgroups.Group(s.cgroupBase()).RemoveEmpty()
	return nil
}
