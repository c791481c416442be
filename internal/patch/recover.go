package patch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

// Recover mends what a run left behind that ended without finishing: zones it
// was changing go back to their snapshots, zones it had finished or not begun
// stay. It tells each thing it does through say, one line a zone. While a run
// goes on, and when there is nothing to mend, it does nothing and costs one
// look at a file. It may be cut off and repeated.
func (e *Engine) Recover(ctx context.Context, say func(line string)) error {
	if _, err := os.Lstat(filepath.Join(e.Dir, activeName)); os.IsNotExist(err) {
		return nil
	}
	l, err := host.TryLock(filepath.Join(e.Dir, lockName))
	if errors.Is(err, host.ErrLocked) {
		return nil // a run, or another's recovery
	}
	if err != nil {
		return fmt.Errorf("recover patch run: %w", err)
	}
	defer l.Unlock()
	return e.recoverLocked(ctx, say)
}

func (e *Engine) recoverLocked(ctx context.Context, say func(string)) error {
	data, err := os.ReadFile(filepath.Join(e.Dir, activeName))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("recover patch run: %w", err)
	}
	id := strings.TrimSpace(string(data))
	rep, err := readReport(e.Dir, id)
	if err != nil {
		return fmt.Errorf("recover patch run: %w", err)
	}
	j := e.journal(id)
	var errs []error
	for _, z := range rep.Zones {
		if z.Phase == phaseEnded {
			continue
		}
		if err := e.recoverZone(ctx, j, z, say); err != nil {
			errs = append(errs, fmt.Errorf("recover %s after patch run %s: %w", z.Zone, id, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the run stays active: the next call tries again
	}
	if rep.State == StateRunning {
		rep.State, rep.Ended = StateInterrupted, time.Now()
		rep.sum(0)
		// Nobody knows when the run ended, so what would follow is left out.
		rep.Wall, rep.SpeedUp, rep.Sequential = 0, 0, 0
		rep.Method = "not known: the run was interrupted"
	}
	return j.close(rep)
}

// recoverZone leaves one zone of a dead run in a state it could have had
// without the run, or rolled back.
func (e *Engine) recoverZone(ctx context.Context, j *journal, z *ZoneReport, say func(string)) error {
	unlock, err := e.Zones.Lock(ctx, z.Zone, "recover patch run "+j.id)
	if errdefs.Is(err, errdefs.NotFound) {
		return endGone(j, z)
	}
	if err != nil {
		return err
	}
	defer unlock()
	state, err := e.Zones.State(ctx, z.Zone)
	if errdefs.Is(err, errdefs.NotFound) {
		return endGone(j, z)
	}
	if err != nil {
		return err
	}
	e.clearShared(ctx, z)
	switch z.Phase {
	case phaseWaiting, phaseStopping, phaseSnapshot:
		return e.recoverUnchanged(ctx, j, z, state, say)
	}
	if err := e.undo(ctx, j, z); err != nil {
		return err
	}
	z.Result, z.Phase = RolledBack, phaseEnded
	z.Reason = joinReason("the run was interrupted", z.Reason)
	if err := j.save(z); err != nil {
		return err
	}
	say(fmt.Sprintf("%s: rolled back to %s, because patch run %s was interrupted while it was being patched",
		z.Zone, z.Snapshot, j.id))
	return nil
}

func (e *Engine) recoverUnchanged(ctx context.Context, j *journal, z *ZoneReport, state string, say func(string)) error {
	if state == stateMounted {
		if err := e.Zones.Unmount(ctx, z.Zone); err != nil {
			return err
		}
	}
	if state == stateRunning {
		e.cleanRunning(ctx, z.Zone)
	}
	booted := false
	if z.Phase != phaseWaiting && z.Strategy == Offline && z.WasRunning && state != stateRunning {
		if err := e.Zones.Boot(ctx, z.Zone); err != nil {
			return err
		}
		booted = true
	}
	if z.Snapshot != "" {
		if err := e.dropSnapshot(ctx, z.Zone, z.Snapshot); err != nil {
			return err
		}
	}
	z.Snapshot, z.Result, z.Phase = "", Skipped, phaseEnded
	z.Reason = "the run was interrupted before this zone was changed"
	if err := j.save(z); err != nil {
		return err
	}
	if booted {
		say(fmt.Sprintf("%s: booted again, unchanged, because patch run %s was interrupted", z.Zone, j.id))
	}
	return nil
}

// clearShared takes away what a dead run showed a zone, and the lists it had
// fetched for the zone's pool: no other run goes on that could need them.
func (e *Engine) clearShared(ctx context.Context, z *ZoneReport) {
	(&zoneWork{rec: z}).unlink(ctx, e.Zones)
	if store, err := e.Zones.Store(ctx, z.Zone); err == nil {
		_ = os.RemoveAll(filepath.Join(store, "lists"))
	}
}

// cleanRunning removes what a dead run left in the memory of a zone that it
// did not change. The next run would do it too.
func (e *Engine) cleanRunning(ctx context.Context, name string) {
	root, err := e.Zones.Root(ctx, name)
	if err != nil {
		return
	}
	defer root.Close()
	if d := packages.Find(e.Drivers, root); d != nil {
		_ = d.Clean(ctx, packages.Zone{Root: root, Exec: func(ctx context.Context, c host.Cmd) (host.Result, error) {
			return e.Zones.Exec(ctx, name, c)
		}})
	}
}

func endGone(j *journal, z *ZoneReport) error {
	z.Result, z.Phase, z.Reason = FailedZone, phaseEnded, "the zone is gone"
	return j.save(z)
}

// undo takes a zone in doubt back to its snapshot. The zone's lock is held.
// How to leave the zone is decided once and written down first, so that undo
// can be repeated from any point.
func (e *Engine) undo(ctx context.Context, j *journal, z *ZoneReport) error {
	state, err := e.Zones.State(ctx, z.Zone)
	if err != nil {
		return err
	}
	if z.Phase != phaseRollingBack {
		z.BootAgain = state == stateRunning || z.Strategy == Offline && z.WasRunning
		z.Kept = "failed-" + j.id
		z.Phase = phaseRollingBack
		if err := j.save(z); err != nil {
			return err
		}
	}
	made, err := e.Zones.HasSnapshot(ctx, z.Zone, z.Kept)
	if err != nil {
		return err
	}
	if !made {
		if err := e.Zones.Unmount(ctx, z.Zone); err != nil {
			return err
		}
		if err := e.Zones.Halt(ctx, z.Zone); err != nil {
			return err
		}
		if err := e.Zones.RollbackTo(ctx, z.Zone, z.Snapshot, z.Kept); err != nil {
			return err
		}
	}
	if !z.BootAgain {
		return nil
	}
	if state, err = e.Zones.State(ctx, z.Zone); err != nil || state == stateRunning {
		return err
	}
	return e.Zones.Boot(ctx, z.Zone)
}

func (e *Engine) dropSnapshot(ctx context.Context, zone, snap string) error {
	err := e.Zones.DeleteSnapshot(ctx, zone, snap)
	if errdefs.Is(err, errdefs.NotFound) {
		return nil
	}
	return err
}

func joinReason(parts ...string) string {
	var have []string
	for _, p := range parts {
		if p != "" {
			have = append(have, p)
		}
	}
	return strings.Join(have, ": ")
}
