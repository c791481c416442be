package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// Create makes a pool and opens it. It undoes what it did when a step fails;
// killed in between, it leaves a record in state "creating", which the next
// Create of the name removes with all that belongs to it.
func (r *Registry) Create(ctx context.Context, spec Spec) (Pool, error) {
	what := "create pool " + spec.Name
	if err := CheckName(spec.Name); err != nil {
		return nil, err
	}
	if spec.Backend == "" {
		spec.Backend = "btrfs"
	}
	b, err := r.backend(what, spec.Backend)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	lock, err := r.lock(ctx, what, spec.Name)
	if err != nil {
		return nil, err
	}
	made := false
	defer func() {
		if made {
			lock.Unlock()
		} else if _, err := r.read(spec.Name); errors.Is(err, fs.ErrNotExist) {
			lock.Remove()
		} else {
			lock.Unlock()
		}
	}()
	if err := r.makeRoom(ctx, what, spec.Name); err != nil {
		return nil, err
	}
	rec, err := b.Plan(spec, r.dir())
	if err != nil {
		return nil, err
	}
	pool, err := r.build(ctx, b, r.begin(spec, rec))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	made = true
	return pool, nil
}

// makeRoom refuses a name that is taken and removes what an interrupted
// Create or Destroy has left of it.
func (r *Registry) makeRoom(ctx context.Context, what, name string) error {
	if err := r.removeTorn(name); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	old, err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if old.State == Ready {
		return errdefs.New(errdefs.WrongState, what, "the pool exists").WithHint("zone pool status %s", name)
	}
	b, err := r.backend(what, old.Backend)
	if err != nil {
		return err
	}
	if err := r.remove(ctx, b, old); err != nil {
		return fmt.Errorf("%s: remove what an interrupted command left: %w", what, err)
	}
	return nil
}

func (r *Registry) begin(spec Spec, rec Record) Record {
	rec.Schema, rec.State = 1, Creating
	rec.Name, rec.Backend, rec.UUID = spec.Name, spec.Backend, host.NewUUID()
	rec.Created = time.Now().UTC().Truncate(time.Second)
	return rec
}

// build makes the pool of a new record, or nothing.
func (r *Registry) build(ctx context.Context, b Backend, rec Record) (Pool, error) {
	if err := r.write(rec); err != nil {
		return nil, err
	}
	pool, err := b.Make(ctx, rec, r.mountPoint(rec.Name))
	if err == nil {
		rec.State = Ready
		err = r.write(rec)
	}
	if err != nil {
		// The undo must run also when the context was what ended the work.
		return nil, errors.Join(err, r.remove(context.WithoutCancel(ctx), b, rec))
	}
	return pool, nil
}

// Destroy removes a pool with everything in it. One that is in use is
// errdefs.Busy and stays as it is. Whether its datasets are in use is the
// caller's to check. With the last pool goes the private mount namespace.
func (r *Registry) Destroy(ctx context.Context, name string) error {
	what := "destroy pool " + name
	if _, err := r.find(what, name); err != nil {
		return err
	}
	lock, err := r.lock(ctx, what, name)
	if err != nil {
		return err
	}
	rec, err := r.find(what, name)
	if err != nil {
		lock.Unlock()
		return err
	}
	b, err := r.backend(what, rec.Backend)
	if err == nil {
		err = r.closeForGood(ctx, b, rec)
	}
	if err == nil {
		rec.State = Destroying
		err = errors.Join(r.write(rec), r.remove(context.WithoutCancel(ctx), b, rec))
	}
	if err != nil {
		lock.Unlock()
		return fmt.Errorf("%s: %w", what, err)
	}
	lock.Remove()
	return r.releaseMounts()
}

// closeForGood closes a pool that nobody else may have open, or leaves it open.
func (r *Registry) closeForGood(ctx context.Context, b Backend, rec Record) error {
	at := r.mountPoint(rec.Name)
	if err := b.Close(ctx, rec, at); err != nil {
		return err
	}
	err := b.InUse(ctx, rec)
	if err == nil || rec.State != Ready {
		return err
	}
	_, again := b.Open(ctx, rec, at)
	return errors.Join(err, again)
}

// remove deletes a pool and, last, its record. Each step may have been done
// before.
func (r *Registry) remove(ctx context.Context, b Backend, rec Record) error {
	at := r.mountPoint(rec.Name)
	if err := b.Close(ctx, rec, at); err != nil {
		return err
	}
	if err := b.InUse(ctx, rec); err != nil {
		return err
	}
	if err := b.Remove(ctx, rec); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.removeTorn(rec.Name); err != nil {
		return err
	}
	if err := os.Remove(r.recordPath(rec.Name)); err != nil {
		return err
	}
	return host.SyncDir(r.dir())
}

// releaseMounts lets the private mount namespace go when no pool is left.
func (r *Registry) releaseMounts() error {
	names, err := r.Names()
	if err != nil || len(names) > 0 {
		return err
	}
	if _, err := os.Lstat(filepath.Join(r.Run, "ns", "mnt")); err != nil {
		return nil // there is none
	}
	return host.ReleasePrivateMounts(r.Run)
}

// removeTorn removes what a killed writer of the record left beside it. Call
// it with the lock held.
func (r *Registry) removeTorn(name string) error {
	entries, err := os.ReadDir(r.dir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), "."+name+".json.")
		if !ok || strings.Trim(rest, "0123456789") != "" {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir(), e.Name())); err != nil {
			return err
		}
	}
	return nil
}
