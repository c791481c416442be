package patch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

const (
	healthTries   = 5
	healthPause   = time.Second
	healthTimeout = time.Minute
)

// errNothingToDo ends the work on a zone that turned out to be up to date.
var errNothingToDo = errors.New("nothing to do")

// patch brings one zone up to date, or leaves it as it was.
func (r *run) patch(ctx context.Context, z *zoneWork) {
	r.j.emit(Event{Type: "zone", Zone: z.rec.Zone, Phase: "patching", Text: z.rec.Strategy})
	err := r.timed(z, func() error {
		unlock, err := r.Zones.Lock(ctx, z.rec.Zone, "patch "+r.j.id)
		if err != nil {
			return err
		}
		defer unlock()
		return r.patchLocked(ctx, z)
	})
	switch {
	case err == nil:
		r.end(z, Patched, nil)
	case errors.Is(err, errNothingToDo):
		r.end(z, UpToDate, nil)
	case z.rec.Result != "":
		r.end(z, z.rec.Result, err)
	case ctx.Err() != nil:
		r.end(z, Skipped, errInterrupted)
	default:
		r.end(z, Skipped, err)
	}
}

// patchLocked does the work and, when it fails after the zone was touched,
// undoes it and sets the result. An error without a result means that nothing
// in the zone was changed.
func (r *run) patchLocked(ctx context.Context, z *zoneWork) error {
	state, err := r.settledState(ctx, z.rec.Zone)
	if err != nil {
		return err
	}
	// The zone may have been booted or halted since it was examined.
	if z.rec.Strategy, err = strategyFor(r.q.Strategy, state); err != nil {
		return err
	}
	z.rec.WasRunning = state == stateRunning
	down := newStopwatch()
	switch {
	case z.rec.Strategy == InPlace:
		err = r.with(ctx, z, func(pz packages.Zone) error { return r.change(ctx, z, pz, false) })
	case state == stateRunning:
		err = r.offlineRunning(ctx, z, down)
	default:
		err = r.mounted(ctx, z)
	}
	if err == nil {
		err = r.checkHealth(ctx, z)
	}
	if err != nil && touched(z.rec.Phase) {
		err = r.rollBack(ctx, z, err, down)
	} else if err != nil {
		r.putBack(ctx, z)
	}
	z.rec.Downtime = down.total().Seconds()
	return err
}

// touched says whether a zone in this phase may have been changed.
func touched(phase string) bool {
	switch phase {
	case phaseApplying, phaseVerifying, phaseBooting, phaseChecking, phaseRollingBack:
		return true
	}
	return false
}

// offlineRunning stops a running zone for its patch and boots it again.
func (r *run) offlineRunning(ctx context.Context, z *zoneWork, down *stopwatch) error {
	// What would keep the zone from being patched is found before it goes down.
	err := r.with(ctx, z, func(pz packages.Zone) error { return r.prepare(ctx, z, pz) })
	if err != nil {
		return err
	}
	if err := r.phase(z, phaseStopping); err != nil {
		return err
	}
	down.start()
	if err := r.Zones.Shutdown(ctx, z.rec.Zone); err != nil {
		return err
	}
	if err := r.mounted(ctx, z); err != nil {
		return err
	}
	if err := r.phase(z, phaseBooting); err != nil {
		return err
	}
	if err := r.Zones.Boot(ctx, z.rec.Zone); err != nil {
		return err
	}
	down.stop()
	return nil
}

// mounted changes a halted zone.
func (r *run) mounted(ctx context.Context, z *zoneWork) error {
	if err := r.Zones.Mount(ctx, z.rec.Zone, true, false); err != nil {
		return err
	}
	err := r.with(ctx, z, func(pz packages.Zone) error { return r.change(ctx, z, pz, true) })
	return errors.Join(err, r.Zones.Unmount(context.WithoutCancel(ctx), z.rec.Zone))
}

// prepare makes sure that the zone can be patched and that the plan holds.
func (r *run) prepare(ctx context.Context, z *zoneWork, pz packages.Zone) error {
	if err := z.driver.Ready(ctx, pz); err != nil {
		return err
	}
	if err := r.healthBefore(ctx, z); err != nil {
		return err
	}
	state, err := z.driver.State(pz.Root)
	if err != nil {
		return err
	}
	if err := z.link(ctx, r.Zones, z.plan.Files); err != nil {
		return err
	}
	if state == z.plan.State {
		return nil
	}
	if err := r.replan(ctx, z, pz); err != nil {
		return err
	}
	if len(z.plan.Changes) == 0 {
		return errNothingToDo
	}
	if !z.haveFiles() {
		return errdefs.New(errdefs.Busy, "patch "+z.rec.Zone, "its packages were changed by somebody else during the run").
			WithHint("zone patch %s", z.rec.Zone)
	}
	return z.link(ctx, r.Zones, z.plan.Files)
}

// change is the core: snapshot, apply, verify. While it works, the package
// database is locked against everybody else.
func (r *run) change(ctx context.Context, z *zoneWork, pz packages.Zone, quiet bool) error {
	unlock, err := z.driver.Lock(ctx, pz.Root, r.q.LockWait)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.prepare(ctx, z, pz); err != nil {
		return err
	}
	defer z.unlink(ctx, r.Zones)
	z.rec.Snapshot = "patch-" + r.j.id
	if err := r.phase(z, phaseSnapshot); err != nil {
		return err
	}
	if err := r.Zones.Snapshot(ctx, z.rec.Zone, z.rec.Snapshot); err != nil {
		return err
	}
	if err := r.phase(z, phaseApplying); err != nil {
		return err
	}
	if err := z.driver.Apply(ctx, pz, z.plan, quiet); err != nil {
		return err
	}
	if err := r.phase(z, phaseVerifying); err != nil {
		return err
	}
	return z.driver.Verify(ctx, pz, z.plan)
}

// phase writes the zone's phase down before the step it names.
func (r *run) phase(z *zoneWork, phase string) error {
	z.rec.Phase = phase
	if err := r.j.save(z.rec); err != nil {
		return err
	}
	r.j.emit(Event{Type: "zone", Zone: z.rec.Zone, Phase: phase})
	return nil
}

// healthBefore refuses a zone whose check fails already: nobody could tell what
// the patch did to it.
func (r *run) healthBefore(ctx context.Context, z *zoneWork) error {
	if r.q.Health == "" {
		return nil
	}
	if state, err := r.Zones.State(ctx, z.rec.Zone); err != nil || state != stateRunning {
		return err
	}
	if err := r.health(ctx, z); err != nil {
		return fmt.Errorf("the health check fails already before the patch: %w", err)
	}
	return nil
}

// checkHealth runs the check after the patch, where there is one and the zone
// runs. Services may need a moment.
func (r *run) checkHealth(ctx context.Context, z *zoneWork) error {
	state, err := r.Zones.State(ctx, z.rec.Zone)
	if err != nil {
		return err
	}
	if z.rec.WasRunning && state != stateRunning {
		return errors.New("the zone stopped while it was being patched")
	}
	if r.q.Health == "" {
		return nil
	}
	if !z.rec.WasRunning {
		z.rec.Health = "not checked: the zone does not run"
		return nil
	}
	if err := r.phase(z, phaseChecking); err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err = r.health(ctx, z); err == nil {
			z.rec.Health = "ok"
			return nil
		}
		if try == healthTries || ctx.Err() != nil {
			return fmt.Errorf("the health check fails after the patch: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(healthPause):
		}
	}
}

func (r *run) health(ctx context.Context, z *zoneWork) error {
	_, err := r.exec(ctx, z, host.Cmd{
		Name: "/bin/sh", Args: []string{"-c", r.q.Health}, Stdout: z.log, Timeout: healthTimeout,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"},
	})
	return err
}

// rollBack undoes what was done to a zone. It returns the reason, with the
// result set.
func (r *run) rollBack(ctx context.Context, z *zoneWork, cause error, down *stopwatch) error {
	if ctx.Err() != nil {
		cause = fmt.Errorf("the run was interrupted: %w", cause)
	}
	ctx = context.WithoutCancel(ctx)
	if state, err := r.Zones.State(ctx, z.rec.Zone); err == nil && z.rec.WasRunning && state != stateRunning {
		if z.rec.Strategy == InPlace && !strings.Contains(cause.Error(), "stopped while") {
			cause = fmt.Errorf("the zone was halted while it was being patched: %w", cause)
		}
	}
	if z.rec.WasRunning {
		down.start()
	}
	r.j.emit(Event{Type: "zone", Zone: z.rec.Zone, Phase: phaseRollingBack, Text: cause.Error()})
	if err := r.undo(ctx, r.j, z.rec); err != nil {
		z.rec.Result, z.rec.Kept = FailedZone, ""
		return fmt.Errorf("%w; rolling back failed too: %w; the zone as it was is %s@%s (zone patch rollback %s %s)",
			cause, err, z.rec.Zone, z.rec.Snapshot, r.j.id, z.rec.Zone)
	}
	if z.rec.BootAgain {
		down.stop()
	}
	z.rec.Result = RolledBack
	return cause
}

// putBack leaves a zone whose patch was never begun as it was before: booted
// if it ran, without our snapshot.
func (r *run) putBack(ctx context.Context, z *zoneWork) {
	ctx = context.WithoutCancel(ctx)
	note := func(err error) {
		if err != nil {
			z.rec.Reason = joinReason(z.rec.Reason, err.Error())
		}
	}
	if z.rec.Phase == phaseWaiting {
		return
	}
	if z.rec.Strategy == Offline && z.rec.WasRunning {
		if state, err := r.Zones.State(ctx, z.rec.Zone); err != nil || state != stateRunning {
			note(errors.Join(err, r.Zones.Boot(ctx, z.rec.Zone)))
		}
	}
	if z.rec.Snapshot != "" {
		note(r.dropSnapshot(ctx, z.rec.Zone, z.rec.Snapshot))
	}
}

// stopwatch adds up the times between start and stop. Starting one that runs
// and stopping one that does not change nothing.
type stopwatch struct {
	since time.Time
	sum   time.Duration
}

func newStopwatch() *stopwatch { return &stopwatch{} }

func (s *stopwatch) start() {
	if s.since.IsZero() {
		s.since = time.Now()
	}
}

func (s *stopwatch) stop() {
	if !s.since.IsZero() {
		s.sum += time.Since(s.since)
		s.since = time.Time{}
	}
}

// total is the sum so far, a running watch included.
func (s *stopwatch) total() time.Duration {
	if s.since.IsZero() {
		return s.sum
	}
	return s.sum + time.Since(s.since)
}
