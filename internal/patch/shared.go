package patch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"zone/internal/errdefs"
	"zone/internal/patch/packages"
)

const (
	// maxDonors is how many zones of a group are tried for work that is done
	// once for all: one may have no network, or too little memory.
	maxDonors = 3
	// storeAge is how long a package file that no run needs is kept.
	storeAge = 30 * 24 * time.Hour
)

// examine finds out what a zone is and which lists it needs.
func (r *run) examine(ctx context.Context, z *zoneWork) {
	err := r.timed(z, func() error {
		return r.inside(ctx, z, false, func(pz packages.Zone, state string) error {
			z.state, z.rec.State = state, state
			var err error
			if z.rec.Strategy, err = strategyFor(r.q.Strategy, state); err != nil {
				return err
			}
			d := packages.Find(r.Drivers, pz.Root)
			if d == nil {
				return errdefs.New(errdefs.NotSupported, "patch "+z.rec.Zone, "no package manager that is known here; known: %s", r.known())
			}
			z.driver = d
			g := &group{driver: d}
			if g.digest, err = d.Sources(pz.Root); err != nil {
				return fmt.Errorf("read package sources: %w", err)
			}
			if g.store, err = r.Zones.Store(ctx, z.rec.Zone); err != nil {
				return err
			}
			z.group = g
			return nil
		})
	})
	if err != nil {
		r.end(z, Skipped, err)
	}
}

func (r *run) known() string {
	s := ""
	for _, d := range r.Drivers {
		s = joinComma(s, d.Name())
	}
	return s
}

func joinComma(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

func strategyFor(asked, state string) (string, error) {
	switch {
	case asked == Auto && state == stateRunning:
		return InPlace, nil
	case asked == Auto:
		return Offline, nil
	case asked == InPlace && state != stateRunning:
		return asked, errdefs.New(errdefs.WrongState, "patch in place", "the zone does not run").
			WithHint("use --strategy auto or offline")
	}
	return asked, nil
}

func (r *run) timed(z *zoneWork, f func() error) error {
	start := time.Now()
	defer func() { z.rec.Wall += time.Since(start).Seconds() }()
	return f()
}

// donors orders the zones of a group for shared work: running ones first, they
// have their network already.
func (g *group) donors() []*zoneWork {
	var ds []*zoneWork
	for _, want := range []string{stateRunning, stateInstalled} {
		for _, z := range g.zones {
			if z.state == want && z.rec.Result == "" {
				ds = append(ds, z)
			}
		}
	}
	return ds[:min(len(ds), maxDonors)]
}

// inDonor calls f in one zone of the group after the other until it succeeds.
// The donor's wall time is not charged to it: the phase is shared.
func (r *run) inDonor(ctx context.Context, g *group, f func(context.Context, *zoneWork, packages.Zone) error) error {
	err := errors.New("no zone to work in")
	for _, z := range g.donors() {
		err = r.inside(ctx, z, true, func(pz packages.Zone, _ string) error {
			defer z.unlink(ctx, r.Zones)
			return f(ctx, z, pz)
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		err = fmt.Errorf("in zone %s: %s", z.rec.Zone, z.log.explain(err))
	}
	return err
}

// refresh gets the group's lists, once.
func (r *run) refresh(ctx context.Context, g *group) {
	g.lists = filepath.Join(g.store, "lists", g.driver.Name()+"-"+g.digest)
	g.err = os.RemoveAll(g.lists) // of a run that died
	if g.err == nil {
		g.err = os.MkdirAll(filepath.Dir(g.lists), 0o755)
	}
	if g.err == nil {
		g.err = r.inDonor(ctx, g, func(ctx context.Context, z *zoneWork, pz packages.Zone) error {
			if err := os.RemoveAll(g.lists); err != nil {
				return err
			}
			n, err := g.driver.Refresh(ctx, pz, g.lists)
			r.bytes += n
			if err != nil {
				return err
			}
			if err := z.link(ctx, r.Zones, nil); err != nil {
				return err
			}
			return g.driver.Index(ctx, pz, g.lists)
		})
	}
	if g.err == nil {
		return
	}
	for _, z := range g.zones {
		if z.rec.Result == "" && ctx.Err() == nil {
			r.end(z, Skipped, fmt.Errorf("get package lists: %w", g.err))
		}
	}
}

func (r *run) dropLists() {
	for _, g := range r.groups {
		_ = os.RemoveAll(g.lists)
		_ = dropOld(filepath.Join(g.store, "archives"), time.Now().Add(-storeAge))
	}
}

// dropOld removes package files that were last needed before the given time.
func dropOld(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.ModTime().Before(before) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// solve asks a zone what is pending.
func (r *run) solve(ctx context.Context, z *zoneWork) {
	err := r.timed(z, func() error {
		return r.inside(ctx, z, false, func(pz packages.Zone, _ string) error {
			if err := z.link(ctx, r.Zones, nil); err != nil {
				return err
			}
			defer z.unlink(ctx, r.Zones)
			return r.replan(ctx, z, pz)
		})
	})
	switch {
	case err != nil:
		r.end(z, Skipped, err)
	case len(z.plan.Changes) == 0:
		r.end(z, UpToDate, nil)
	}
}

// replan solves, and refuses plans that remove packages.
func (r *run) replan(ctx context.Context, z *zoneWork, pz packages.Zone) error {
	p, err := z.driver.Solve(ctx, pz, r.q.Options)
	if err != nil {
		return err
	}
	z.plan = p
	z.rec.Packages, z.rec.KeptBack, z.rec.Download = p.Changes, p.KeptBack, 0
	for _, f := range p.Files {
		z.rec.Download += f.Size
	}
	if len(p.Removed) > 0 {
		return errdefs.New(errdefs.WrongState, "patch "+z.rec.Zone, "the upgrade would remove packages: %v", p.Removed)
	}
	return nil
}

// fetch gets the files that the group's zones need and the pool does not have.
func (r *run) fetch(ctx context.Context, g *group) {
	missing, err := r.missing(g)
	if err == nil && len(missing) > 0 {
		err = r.inDonor(ctx, g, func(ctx context.Context, _ *zoneWork, pz packages.Zone) error {
			todo := slices.DeleteFunc(slices.Clone(missing), func(f packages.File) bool { return inStore(g.store, f) == nil })
			return g.driver.Fetch(ctx, pz, todo, func(f packages.File, in io.Reader) error {
				r.bytes += f.Size
				return keep(g.store, f, in)
			})
		})
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	for _, z := range g.zones {
		if z.rec.Result == "" && !z.haveFiles() {
			r.end(z, Skipped, err)
		}
	}
}

// missing lists the files of the group that have to be fetched, each once.
// Those that another pool has are copied.
func (r *run) missing(g *group) ([]packages.File, error) {
	seen := map[string]bool{}
	var files []packages.File
	for _, z := range g.zones {
		if z.rec.Result != "" {
			continue
		}
		for _, f := range z.plan.Files {
			if seen[f.SHA256] {
				continue
			}
			seen[f.SHA256] = true
			if checkStored(g.store, f) == nil {
				continue
			}
			if err := r.copyFromOther(g, f); err != nil {
				files = append(files, f)
			}
		}
	}
	return files, os.MkdirAll(filepath.Join(g.store, "archives"), 0o755)
}

func (r *run) copyFromOther(g *group, f packages.File) error {
	for _, o := range r.groups {
		if o.store == g.store || inStore(o.store, f) != nil {
			continue
		}
		in, err := os.Open(storePath(o.store, f))
		if err != nil {
			continue
		}
		err = errors.Join(keep(g.store, f, in), in.Close())
		if err == nil {
			return nil
		}
	}
	return os.ErrNotExist
}

func storePath(store string, f packages.File) string {
	return filepath.Join(store, "archives", f.SHA256)
}

// inStore says whether a file is there; its content was checked when it came.
func inStore(store string, f packages.File) error {
	st, err := os.Stat(storePath(store, f))
	if err == nil && st.Size() != f.Size {
		err = fmt.Errorf("%s has %d bytes, not %d", f.Name, st.Size(), f.Size)
	}
	return err
}

// checkStored reads a file of an earlier run again, and removes one that is
// not what it was.
func checkStored(store string, f packages.File) error {
	if err := inStore(store, f); err != nil {
		return err
	}
	in, err := os.Open(storePath(store, f))
	if err != nil {
		return err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return errors.Join(fmt.Errorf("%s is damaged", in.Name()), os.Remove(in.Name()))
	}
	now := time.Now()
	return os.Chtimes(in.Name(), now, now)
}

// keep puts a fetched file into the store if its size and hash are right.
func keep(store string, f packages.File, in io.Reader) error {
	dir := filepath.Join(store, "archives")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	out, err := os.CreateTemp(dir, ".fetch-*")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name()) // gone already when all went well
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, h), io.LimitReader(in, f.Size+1))
	err = errors.Join(err, out.Chmod(0o644), out.Close())
	if err != nil {
		return fmt.Errorf("keep %s: %w", f.Name, err)
	}
	if n != f.Size || hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("keep %s: what was fetched has another size or SHA256 sum than the lists say", f.Name)
	}
	return os.Rename(out.Name(), storePath(store, f))
}

func (z *zoneWork) haveFiles() bool {
	return !slices.ContainsFunc(z.plan.Files, func(f packages.File) bool { return inStore(z.group.store, f) != nil })
}

// link shows the zone its lists and the files it needs, as hard links: they
// take no room.
func (z *zoneWork) link(ctx context.Context, zones Zones, files []packages.File) error {
	dir, err := zones.SharedDir(ctx, z.rec.Zone)
	if err != nil {
		return err
	}
	z.unlink(ctx, zones)
	for _, d := range []string{"lists", "archives/partial", "empty/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(z.group.lists)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(z.group.lists, e.Name()), filepath.Join(dir, "lists", e.Name())
		if e.IsDir() {
			err = os.Mkdir(to, 0o755)
		} else {
			err = os.Link(from, to)
		}
		if err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := os.Link(storePath(z.group.store, f), filepath.Join(dir, "archives", f.Name)); err != nil {
			return err
		}
	}
	return nil
}

// unlink takes away what link made.
func (z *zoneWork) unlink(ctx context.Context, zones Zones) {
	dir, err := zones.SharedDir(context.WithoutCancel(ctx), z.rec.Zone)
	if err != nil {
		return
	}
	for _, d := range []string{"lists", "archives", "empty"} {
		_ = os.RemoveAll(filepath.Join(dir, d))
	}
}
