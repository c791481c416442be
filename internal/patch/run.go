package patch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

// run is one run in progress. Its maps are filled before the workers start and
// not changed by them; each zoneWork belongs to one worker at a time.
type run struct {
	*Engine
	q     Request
	j     *journal
	start time.Time
	own   time.Duration // the tool's own CPU time at the start
	zones []*zoneWork

	groups []*group
	shared time.Duration
	bytes  int64
}

// zoneWork is a zone with what is known of it in this run.
type zoneWork struct {
	rec    *ZoneReport
	driver packages.Driver
	state  string // when examined
	group  *group
	plan   packages.Plan
	log    *outputLog
}

// group is the zones of one pool whose package lists are the same.
type group struct {
	driver packages.Driver
	digest string
	store  string
	zones  []*zoneWork
	err    error  // why it has no lists
	lists  string // the lists on the host
}

func newRun(e *Engine, q Request, j *journal) *run {
	r := &run{Engine: e, q: q, j: j, start: time.Now(), own: ownCPU()}
	for _, name := range q.Zones {
		z := &zoneWork{rec: &ZoneReport{Zone: name, Phase: phaseWaiting}}
		w, err := j.log(name)
		if err != nil {
			w = discard{}
		}
		z.log = newOutputLog(w)
		r.zones = append(r.zones, z)
	}
	return r
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

// do goes through the phases. Zones that end leave the later ones out.
func (r *run) do(ctx context.Context) {
	defer r.dropLists()
	r.each(ctx, "examine", r.zones, r.examine)
	r.makeGroups()
	r.sharedPhase(ctx, "refresh", r.refresh)
	r.each(ctx, "solve", r.open(), r.solve)
	if r.q.DryRun {
		for _, z := range r.open() {
			r.end(z, Pending, nil)
		}
		return
	}
	r.sharedPhase(ctx, "fetch", r.fetch)
	r.each(ctx, "patch", r.open(), r.patch)
}

// open returns the zones that have no result yet.
func (r *run) open() []*zoneWork {
	return slices.DeleteFunc(slices.Clone(r.zones), func(z *zoneWork) bool { return z.rec.Result != "" })
}

// each calls f for the zones, as many at once as the run's jobs. Zones not
// begun when ctx ends are skipped.
func (r *run) each(ctx context.Context, phase string, zones []*zoneWork, f func(context.Context, *zoneWork)) {
	if len(zones) == 0 {
		return
	}
	r.j.emit(Event{Type: "phase", Phase: phase, Of: len(zones)})
	var wg sync.WaitGroup
	var mu sync.Mutex // guards through
	through := 0
	free := make(chan struct{}, r.q.Jobs)
	for _, z := range zones {
		free <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-free; wg.Done() }()
			if ctx.Err() != nil {
				r.end(z, Skipped, errInterrupted)
				return
			}
			f(ctx, z)
			mu.Lock()
			through++
			n := through
			mu.Unlock()
			r.j.emit(Event{Type: "phase", Phase: phase, Zone: z.rec.Zone, Through: n, Of: len(zones)})
		}()
	}
	wg.Wait()
}

var errInterrupted = errors.New("the run was interrupted before this zone was changed")

// sharedPhase measures work that is done once for many zones.
func (r *run) sharedPhase(ctx context.Context, phase string, f func(context.Context, *group)) {
	if len(r.open()) == 0 {
		return
	}
	r.j.emit(Event{Type: "phase", Phase: phase, Of: len(r.groups)})
	start := time.Now()
	for _, g := range r.groups {
		if ctx.Err() == nil {
			f(ctx, g)
		}
	}
	r.shared += time.Since(start)
}

// end gives a zone its result and tells of it. err says why, for results that
// need a reason.
func (r *run) end(z *zoneWork, result string, err error) {
	rec := z.rec
	rec.Result, rec.Phase = result, phaseEnded
	if err != nil {
		rec.Reason = joinReason(rec.Reason, z.log.explain(err))
		rec.Output = z.log.tail()
	}
	if result != Patched && result != RolledBack && result != FailedZone {
		rec.Snapshot = ""
	}
	if err := r.j.save(rec); err != nil {
		rec.Reason = joinReason(rec.Reason, err.Error())
	}
	z.log.close()
	end := *rec
	r.j.emit(Event{Type: "zone", Zone: rec.Zone, End: &end})
}

func (r *run) makeGroups() {
	for _, z := range r.open() {
		g := z.group
		i := slices.IndexFunc(r.groups, func(h *group) bool {
			return h.digest == g.digest && h.store == g.store && h.driver.Name() == g.driver.Name()
		})
		if i < 0 {
			i = len(r.groups)
			r.groups = append(r.groups, g)
		}
		z.group = r.groups[i]
		z.group.zones = append(z.group.zones, z)
	}
}

// finish makes the report.
func (r *run) finish(ctx context.Context) *Report {
	rep := &Report{
		Schema: 1, Run: r.j.id, State: StateFinished, Started: r.start, Ended: time.Now(), Request: r.q,
		BytesFetched: r.bytes, Shared: r.shared.Seconds(), Wall: time.Since(r.start).Seconds(),
	}
	if ctx.Err() != nil {
		rep.State = StateInterrupted
	}
	for _, z := range r.zones {
		rep.Zones = append(rep.Zones, z.rec)
	}
	slices.SortFunc(rep.Zones, func(a, b *ZoneReport) int { return strings.Compare(a.Zone, b.Zone) })
	rep.sum((ownCPU() - r.own).Seconds())
	r.j.emit(Event{Type: "report", Report: rep})
	return rep
}

// ownCPU is the CPU time of this process. Its children are left out: what they
// do in the zones is in the zones' cgroups.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// inside locks a zone, mounts it if it is halted, and calls f with its files
// and programs at hand. Whatever f does, the zone is left as it was found.
func (r *run) inside(ctx context.Context, z *zoneWork, network bool, f func(packages.Zone, string) error) error {
	unlock, err := r.Zones.Lock(ctx, z.rec.Zone, "patch "+r.j.id)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := r.settledState(ctx, z.rec.Zone)
	if err != nil {
		return err
	}
	if state != stateInstalled {
		return r.with(ctx, z, func(pz packages.Zone) error { return f(pz, state) })
	}
	if err := r.Zones.Mount(ctx, z.rec.Zone, true, network); err != nil {
		return err
	}
	err = r.with(ctx, z, func(pz packages.Zone) error { return f(pz, state) })
	return errors.Join(err, r.Zones.Unmount(context.WithoutCancel(ctx), z.rec.Zone))
}

// settledState returns running or installed. A zone that is mounted although we
// hold its lock was left so by a program that died.
func (r *run) settledState(ctx context.Context, name string) (string, error) {
	state, err := r.Zones.State(ctx, name)
	if err == nil && state == stateMounted {
		if err = r.Zones.Unmount(ctx, name); err == nil {
			state, err = r.Zones.State(ctx, name)
		}
	}
	if err != nil {
		return "", err
	}
	if state != stateRunning && state != stateInstalled {
		return "", errdefs.New(errdefs.WrongState, "patch "+name, "the zone is %s; only running and installed zones are patched", state)
	}
	return state, nil
}

// with opens a zone that is running or mounted, and charges what happens until
// it returns to the zone's account.
func (r *run) with(ctx context.Context, z *zoneWork, f func(packages.Zone) error) error {
	root, err := r.Zones.Root(ctx, z.rec.Zone)
	if err != nil {
		return err
	}
	defer root.Close()
	pz := packages.Zone{Root: root, Log: z.log, Exec: func(ctx context.Context, c host.Cmd) (host.Result, error) {
		return r.exec(ctx, z, c)
	}}
	defer r.charge(ctx, z)()
	err = f(pz)
	if z.driver != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanPatience)
		defer cancel()
		// What is left lies in the zone's /run, which goes when it stops, and
		// the next run takes it away.
		if err := z.driver.Clean(cctx, pz); err != nil {
			_, _ = fmt.Fprintf(z.log, "clean up: %v\n", err)
		}
	}
	return err
}

// cleanPatience bounds the wait for a zone in which nothing runs any more.
const cleanPatience = 20 * time.Second

// charge begins an account of a zone's CPU; the function it returns adds to the
// report. A zone that stopped meanwhile has no counters: nothing is added.
func (r *run) charge(ctx context.Context, z *zoneWork) func() {
	ctx = context.WithoutCancel(ctx)
	before, errBefore := r.Zones.CPU(ctx, z.rec.Zone)
	return func() {
		after, err := r.Zones.CPU(ctx, z.rec.Zone)
		if err != nil || errBefore != nil {
			return
		}
		z.rec.CPU += (after.Used - before.Used).Seconds()
		z.rec.WaitKnown = after.HasWaited
		waited := (after.Waited - before.Waited) - (after.Throttled - before.Throttled)
		z.rec.Waited += max(0, waited.Seconds())
	}
}

// exec runs a program in a zone, with its output in the zone's log, and ends it
// when it says nothing for too long.
func (r *run) exec(ctx context.Context, z *zoneWork, c host.Cmd) (host.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("%s said nothing for %s and was ended", c.Name, r.q.Idle)
	timer := time.AfterFunc(r.q.Idle, func() { cancel(silent) })
	defer timer.Stop()
	z.log.trace("+ %s %s\n", c.Name, strings.Join(c.Args, " "))
	touch := func(w io.Writer) io.Writer {
		if w == nil {
			return nil
		}
		return writerFunc(func(p []byte) (int, error) { timer.Reset(r.q.Idle); return w.Write(p) })
	}
	c.Stdout = touch(c.Stdout)
	if c.Stderr == nil {
		c.Stderr = z.log
	}
	c.Stderr = touch(c.Stderr)
	res, err := r.Zones.Exec(ctx, z.rec.Zone, c)
	if err != nil && context.Cause(ctx) == silent {
		return res, silent
	}
	return res, err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
