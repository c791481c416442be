// Package patch brings the packages of many zones up to date at once. A run
// goes through phases: examine every zone, refresh the package lists once for
// each group of like zones, solve in every zone, fetch every package file once,
// then patch: snapshot, upgrade without the network, verify, check health, or
// roll back. What one zone does never stops another.
//
// A run is journaled in a directory of its own. Every change of a zone's phase
// is on disk before the step it names begins, so Recover can tell, after a
// crash at any point, which zones to roll back and which to leave alone.
//
// The package knows zones through the interface Zones and package managers
// through packages.Driver; it starts no programs itself. The methods of Engine
// may be called from any goroutine; one run at a time goes on in a home.
package patch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

// The strategies of a run.
const (
	Auto    = "auto"     // in-place for running zones, offline for halted ones
	InPlace = "in-place" // the zone keeps running
	Offline = "offline"  // the zone is halted meanwhile, and booted again if it ran
	Live    = "live"     // not yet
)

// Engine runs patches. Set the fields before the first call.
type Engine struct {
	Zones   Zones
	Drivers []packages.Driver
	Dir     string            // where runs are kept: $ZONE_HOME/patch
	Note    func(Event)       // told of everything that happens, one call at a time; may be nil
	saved   func(zone string) // tests: called after each write of the journal
}

// Request says what to patch and how.
type Request struct {
	Zones    []string         `json:"zones"`
	Jobs     int              `json:"jobs"` // zones worked on at once; 0 means as many as there are CPUs
	Strategy string           `json:"strategy"`
	Options  packages.Options `json:"options"`
	// Health is a shell command, run in each running zone before and after.
	Health string `json:"health,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	// LockWait is how long to wait for the package manager in a zone; seconds
	// in JSON would tempt to edit it, so it is not kept.
	LockWait time.Duration `json:"-"`
	// Idle ends a zone's work when it has said nothing for so long; 0 means 15
	// minutes.
	Idle time.Duration `json:"-"`
	// Resumes names the run whose zones these are, if any.
	Resumes string `json:"resumes,omitempty"`
}

const (
	defaultLockWait = time.Minute
	defaultIdle     = 15 * time.Minute
)

// Event is one thing that happened in a run.
type Event struct {
	Time  time.Time   `json:"time"`
	Run   string      `json:"run"`
	Type  string      `json:"event"` // run, phase, zone, report
	Phase string      `json:"phase,omitempty"`
	Zone  string      `json:"zone,omitempty"`
	Text  string      `json:"text,omitempty"`
	End   *ZoneReport `json:"result,omitempty"` // the zone is through
	// Through and Of count zones in this phase.
	Through int     `json:"through,omitempty"`
	Of      int     `json:"of,omitempty"`
	Report  *Report `json:"report,omitempty"`
}

var excludable = regexp.MustCompile(`^[a-z0-9*?][a-z0-9+.*?-]*$`)

// check fills in defaults and refuses what cannot be done.
func (q *Request) check() error {
	if q.Strategy == "" {
		q.Strategy = Auto
	}
	switch q.Strategy {
	case Auto, InPlace, Offline:
	case Live:
		return errdefs.New(errdefs.NotSupported, "patch", "the strategy live comes in a later version").
			WithHint("zone patch --strategy auto ...")
	default:
		return errdefs.New(errdefs.Usage, "--strategy "+q.Strategy, "unknown; allowed: auto, in-place, offline, live")
	}
	if q.Jobs < 0 {
		return errdefs.New(errdefs.Usage, "--jobs", "%d is not a number of zones; allowed: auto, or 1 and up", q.Jobs)
	}
	for _, p := range q.Options.Exclude {
		if !excludable.MatchString(p) {
			return errdefs.New(errdefs.Usage, "--exclude "+p, "not the name of a package; globs with * and ? are allowed")
		}
	}
	if len(q.Zones) == 0 {
		return errdefs.New(errdefs.Usage, "patch", "no zone named").WithHint("zone patch --all")
	}
	if q.LockWait == 0 {
		q.LockWait = defaultLockWait
	}
	if q.Idle == 0 {
		q.Idle = defaultIdle
	}
	if q.Jobs == 0 {
		q.Jobs = max(1, runtime.NumCPU())
	}
	q.Jobs = min(q.Jobs, len(q.Zones))
	return nil
}

// Run patches the zones and returns the report, also with an error: Partial
// when some zones could not be patched, Failed when none could, Interrupted
// when ctx ended. Zones that were being changed then have been rolled back.
func (e *Engine) Run(ctx context.Context, q Request) (*Report, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	lock, err := e.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := e.recoverLocked(context.WithoutCancel(ctx), func(string) {}); err != nil {
		return nil, err
	}
	id := newID(time.Now())
	if err := tell(lock, id); err != nil {
		return nil, err
	}
	j, err := e.openJournal(id, &q)
	if err != nil {
		return nil, err
	}
	r := newRun(e, q, j)
	r.do(ctx)
	rep := r.finish(ctx)
	if err := j.close(rep); err != nil {
		return rep, fmt.Errorf("patch run %s: %w", id, err)
	}
	return rep, rep.Err(ctx.Err() != nil)
}

// Resume repeats a run for those of its zones that were not brought up to date.
func (e *Engine) Resume(ctx context.Context, id string, change func(*Request)) (*Report, error) {
	old, err := e.Show(id)
	if err != nil {
		return nil, err
	}
	q := old.Request
	q.Zones, q.Resumes = nil, id
	for _, z := range old.Zones {
		if !z.done() {
			q.Zones = append(q.Zones, z.Zone)
		}
	}
	if len(q.Zones) == 0 {
		return nil, errdefs.New(errdefs.WrongState, "resume "+id, "every zone of this run is up to date")
	}
	change(&q)
	return e.Run(ctx, q)
}

// List returns the reports of all runs, oldest first.
func (e *Engine) List() ([]*Report, error) {
	ids, err := e.runs()
	if err != nil {
		return nil, err
	}
	var all []*Report
	for _, id := range ids {
		rep, err := readReport(e.Dir, id)
		if err != nil {
			return nil, err
		}
		e.markLive(rep)
		all = append(all, rep)
	}
	return all, nil
}

// Show returns the report of a run as far as it has come. An unknown run is
// NotFound.
func (e *Engine) Show(id string) (*Report, error) {
	ids, err := e.runs()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(ids, id) {
		err := errdefs.New(errdefs.NotFound, "patch run "+id, "there is no such run")
		if len(ids) > 0 {
			return nil, err.WithHint("the last run is %s; zone patch list shows all", ids[len(ids)-1])
		}
		return nil, err
	}
	rep, err := readReport(e.Dir, id)
	if err != nil {
		return nil, err
	}
	e.markLive(rep)
	return rep, nil
}

// markLive says "interrupted" of an unfinished run that nobody works on.
func (e *Engine) markLive(rep *Report) {
	if rep.State != StateRunning {
		return
	}
	if l, err := host.TryLock(filepath.Join(e.Dir, lockName)); err == nil {
		l.Unlock()
		rep.State = StateInterrupted
	}
}

func (e *Engine) runs() ([]string, error) {
	entries, err := os.ReadDir(e.Dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list patch runs: %w", err)
	}
	var ids []string
	for _, d := range entries {
		if _, err := os.Stat(filepath.Join(e.Dir, d.Name(), runFile)); d.IsDir() && err == nil {
			ids = append(ids, d.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Rollback takes zones of a run back to the snapshots it made, all of them when
// no name is given. Zones that run are halted for it and booted again. The
// roots that are replaced stay as snapshots.
func (e *Engine) Rollback(ctx context.Context, id string, names []string) ([]RollbackResult, error) {
	rep, err := e.Show(id)
	if err != nil {
		return nil, err
	}
	lock, err := e.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := e.recoverLocked(ctx, func(string) {}); err != nil {
		return nil, err
	}
	var out []RollbackResult
	failed := 0
	for _, z := range rep.Zones {
		if len(names) > 0 && !slices.Contains(names, z.Zone) || len(names) == 0 && z.Result != Patched {
			continue
		}
		res := RollbackResult{Zone: z.Zone, Snapshot: z.Snapshot, Kept: "before-rollback-" + newID(time.Now())}
		if err := e.rollbackZone(ctx, id, z, &res); err != nil {
			res.Reason, res.Kept = err.Error(), ""
			failed++
		}
		out = append(out, res)
	}
	if missing := unnamed(names, out); len(missing) > 0 {
		return out, errdefs.New(errdefs.NotFound, "roll back "+id, "not in this run: %s", strings.Join(missing, ", "))
	}
	switch {
	case len(out) == 0:
		return out, errdefs.New(errdefs.WrongState, "roll back "+id, "this run patched no zone")
	case failed == len(out):
		return out, errdefs.New(errdefs.Failed, "roll back "+id, "%s: %s", out[0].Zone, out[0].Reason)
	case failed > 0:
		return out, errdefs.New(errdefs.Partial, "roll back "+id, "%d of %d zones could not be rolled back", failed, len(out))
	}
	return out, nil
}

// RollbackResult is how it went for one zone.
type RollbackResult struct {
	Zone     string  `json:"zone"`
	Snapshot string  `json:"snapshot"`       // what the zone is at now
	Kept     string  `json:"kept,omitempty"` // the snapshot of what it was at before
	Downtime float64 `json:"downtime_seconds"`
	Booted   bool    `json:"booted"`
	Reason   string  `json:"reason,omitempty"` // why it failed
}

func unnamed(names []string, done []RollbackResult) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.ContainsFunc(done, func(r RollbackResult) bool { return r.Zone == n })
	})
}

func (e *Engine) rollbackZone(ctx context.Context, id string, z *ZoneReport, res *RollbackResult) error {
	if z.Snapshot == "" {
		return errdefs.New(errdefs.WrongState, "roll back "+z.Zone, "the run did not change it (%s)", z.Result)
	}
	unlock, err := e.Zones.Lock(ctx, z.Zone, "patch rollback "+id)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := e.Zones.HasSnapshot(ctx, z.Zone, z.Snapshot)
	if err != nil {
		return err
	}
	if !has {
		return errdefs.New(errdefs.NotFound, "roll back "+z.Zone, "snapshot %s@%s is gone", z.Zone, z.Snapshot)
	}
	state, err := e.Zones.State(ctx, z.Zone)
	if err != nil {
		return err
	}
	start := time.Now()
	if state == stateRunning {
		if err := e.Zones.Shutdown(ctx, z.Zone); err != nil {
			return err
		}
		res.Booted = true
	}
	// From here on an interrupt must not leave the zone down.
	ctx = context.WithoutCancel(ctx)
	err = e.Zones.RollbackTo(ctx, z.Zone, z.Snapshot, res.Kept)
	if res.Booted {
		if bootErr := e.Zones.Boot(ctx, z.Zone); bootErr != nil {
			return fmt.Errorf("rolled back, but: %w", bootErr)
		}
		res.Downtime = time.Since(start).Seconds()
	}
	return err
}
