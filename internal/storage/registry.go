package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

// Registry knows the pools of one home. Its records are files, each changed
// under the pool's own lock, so any number of processes may use it at once.
type Registry struct {
	Home     string // $ZONE_HOME
	Run      string // $ZONE_RUN
	Runner   host.Runner
	Backends map[string]Backend
}

// lockWait is how long a call waits for another one that makes, opens or
// removes the same pool.
const lockWait = 30 * time.Second

// Names returns the names of the pools, sorted. They may be in any state.
func (r *Registry) Names() ([]string, error) {
	entries, err := os.ReadDir(r.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// List describes all pools, opening those that are not open. One that cannot
// be opened is listed with its problem.
func (r *Registry) List(ctx context.Context) ([]Info, error) {
	names, err := r.Names()
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(names))
	for _, name := range names {
		info, err := r.describe(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // destroyed since
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (r *Registry) describe(ctx context.Context, name string) (Info, error) {
	rec, err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, err
	}
	if err != nil {
		return Info{Name: name, State: Unavailable, Problem: err.Error()}, nil
	}
	info := rec.Info()
	if rec.State != Ready {
		info.Problem = r.unfinished(rec)
		return info, nil
	}
	pool, err := r.Open(ctx, name)
	if err == nil {
		return pool.Info(), nil
	}
	if ctx.Err() != nil {
		return Info{}, ctx.Err()
	}
	info.State, info.Problem = Unavailable, err.Error()
	return info, nil
}

// Open returns a pool, mounted at RUN/pools/NAME.
func (r *Registry) Open(ctx context.Context, name string) (Pool, error) {
	what := "open pool " + name
	if rec, err := r.find(what, name); err == nil && rec.State != Ready {
		// Somebody may be making it this moment: wait for the end of that.
		lock, err := r.lock(ctx, what, name)
		if err != nil {
			return nil, err
		}
		lock.Unlock()
	}
	rec, b, err := r.load(what, name)
	if err != nil {
		return nil, err
	}
	if pool, ok := b.Opened(rec, r.mountPoint(name)); ok {
		return pool, nil
	}
	lock, err := r.lock(ctx, what, name)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if rec, b, err = r.load(what, name); err != nil {
		return nil, err
	}
	if pool, ok := b.Opened(rec, r.mountPoint(name)); ok {
		return pool, nil
	}
	pool, err := b.Open(ctx, rec, r.mountPoint(name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return pool, nil
}

// Close unmounts a pool; the next Open mounts it again.
func (r *Registry) Close(ctx context.Context, name string) error {
	what := "close pool " + name
	lock, err := r.lock(ctx, what, name)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	rec, b, err := r.load(what, name)
	if err != nil {
		return err
	}
	return b.Close(ctx, rec, r.mountPoint(name))
}

// load reads the record of a pool that can be used.
func (r *Registry) load(what, name string) (Record, Backend, error) {
	rec, err := r.find(what, name)
	if err != nil {
		return rec, nil, err
	}
	if rec.State != Ready {
		return rec, nil, errdefs.New(errdefs.WrongState, what, "%s", r.unfinished(rec)).
			WithHint("zone pool destroy %s", name)
	}
	b, err := r.backend(what, rec.Backend)
	return rec, b, err
}

// find reads the record of a pool in any state.
func (r *Registry) find(what, name string) (Record, error) {
	if err := CheckName(name); err != nil {
		return Record{}, err
	}
	rec, err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, r.notFound(what, name)
	}
	if err != nil {
		return rec, fmt.Errorf("%s: %w", what, err)
	}
	return rec, nil
}

func (r *Registry) notFound(what, name string) error {
	names, err := r.Names()
	if err != nil {
		return err
	}
	e := errdefs.New(errdefs.NotFound, what, "no such pool")
	switch near := config.Nearest(name, names); {
	case near != "":
		e.Why += "; did you mean " + near + "?"
	case len(names) > 0:
		e.Why += "; there are: " + strings.Join(names, ", ")
	default:
		return e.WithHint("zone pool create %s", name)
	}
	return e.WithHint("zone pool list")
}

// unfinished explains a record that is not ready. A lock that is held means
// that the work goes on.
func (r *Registry) unfinished(rec Record) string {
	lock, err := host.TryLock(r.lockPath(rec.Name))
	if errors.Is(err, host.ErrLocked) {
		return "another command is " + rec.State + " it now"
	}
	if err == nil {
		lock.Unlock()
	}
	return rec.State + " it was interrupted; create or destroy it again"
}

func (r *Registry) lock(ctx context.Context, what, name string) (*host.Lock, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	lock, err := host.WaitLock(ctx, r.lockPath(name), lockWait)
	if errors.Is(err, host.ErrLocked) {
		return nil, errdefs.New(errdefs.Busy, what, "another command still works on the pool after %s", lockWait)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return lock, nil
}

func (r *Registry) read(name string) (Record, error) {
	var rec Record
	if err := host.ReadJSON(r.recordPath(name), &rec); err != nil {
		return rec, err
	}
	if rec.Name != name {
		return rec, fmt.Errorf("%s: is about pool %s", r.recordPath(name), quote(rec.Name))
	}
	return rec, nil
}

func (r *Registry) write(rec Record) error {
	return host.WriteJSON(r.recordPath(rec.Name), rec, true)
}

func (r *Registry) dir() string                   { return filepath.Join(r.Home, "pools") }
func (r *Registry) recordPath(name string) string { return filepath.Join(r.dir(), name+".json") }
func (r *Registry) lockPath(name string) string   { return filepath.Join(r.dir(), name+".lock") }
func (r *Registry) mountPoint(name string) string { return filepath.Join(r.Run, "pools", name) }
