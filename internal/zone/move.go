package zone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// stepRemove is the step of a move in which the zone is in its new place and
// the old one goes.
const stepRemove = "remove"

// Move takes a zone that does not run to another pool, with its snapshots, its
// boot environments and all they stand on. The old place is removed when the
// new one is whole and on disk.
func (s *Service) Move(ctx context.Context, name, to string) error {
	pool, err := s.Pools.Open(ctx, to)
	if err != nil {
		return err
	}
	keep, err := host.LockShared(ctx, s.imagesLock(pool), s.patience())
	if errors.Is(err, host.ErrLocked) {
		return errdefs.New(errdefs.Busy, opMove+" "+name, "an image of pool %s is being deleted", to)
	}
	if err != nil {
		return err
	}
	defer keep.Unlock()
	l, err := s.lock(ctx, opMove, name)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	if at.Pool.Info().Name == to {
		return errdefs.New(errdefs.WrongState, opMove+" "+name, "it is in pool %s already", to)
	}
	if _, err := os.Stat((Place{pool, name}).dir()); err == nil {
		return errdefs.New(errdefs.WrongState, opMove+" "+name, "pool %s has a zone of this name, too", to)
	}
	if err := s.idle(opMove, at); err != nil {
		return err
	}
	return s.moveLocked(ctx, at, pool)
}

func (s *Service) moveLocked(ctx context.Context, at Place, pool storage.Pool) (err error) {
	j, err := s.begin(opMove, pool.Info().Name, at.Name)
	if err != nil {
		return err
	}
	m := &moving{at: at, arrival: arrival{s: s, pool: pool, tmp: path.Join("tmp", j.ID), name: at.Name}}
	source := at.Pool.Info().Name
	err = j.step("copy", source)
	if err == nil {
		err = m.plan(ctx)
	}
	if err == nil {
		err = m.copyAll(ctx)
	}
	if err == nil {
		err = j.step("place", source)
	}
	if err == nil {
		err = m.place(ctx)
	}
	clean := context.WithoutCancel(ctx)
	if err != nil {
		undo := errors.Join(s.removeArrival(clean, pool, m.tmp), s.removeArrival(clean, at.Pool, m.tmp))
		s.tidyLayers(clean, pool)
		j.endUnless(undo)
		return errors.Join(explainFull(opMove+" "+at.Name, pool, err), undo)
	}
	if err = j.step(stepRemove, source); err == nil {
		err = s.finishMove(clean, at, pool, j.ID)
	}
	j.endUnless(err)
	return err
}

// finishMove removes the old place of a zone that is in its new one. It may be
// repeated.
func (s *Service) finishMove(ctx context.Context, at Place, pool storage.Pool, id string) error {
	trash := path.Join("trash", id)
	if err := os.MkdirAll(at.Pool.Path("trash"), 0o700); err != nil {
		return err
	}
	if err := os.Rename(at.dir(), at.Pool.Path(trash)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := errors.Join(
		s.removeTree(ctx, at.Pool, trash),
		s.removeArrival(ctx, at.Pool, path.Join("tmp", id)), s.removeArrival(ctx, pool, path.Join("tmp", id)),
		os.RemoveAll(filepath.Join(at.Pool.Path("shared"), "zones", at.Name)),
	)
	s.tidyLayers(ctx, at.Pool)
	return err
}

// moving is a zone on its way from at to the pool of the arrival.
type moving struct {
	arrival
	at     Place
	leaves []leaf
}

// leaf is one dataset of the zone's own, as it was before the move.
type leaf struct {
	name   string // "active", "@SNAP", "+BE"
	record Record
	taken  time.Time
}

func (m *moving) encoding() string {
	if m.at.Pool.Info().Backend == encodingBtrfs && m.pool.Info().Backend == encodingBtrfs {
		return encodingBtrfs
	}
	return encodingTar
}

// plan lists what is to be copied: the zone's datasets, oldest first, and what
// they stand on.
func (m *moving) plan(ctx context.Context) error {
	images := map[string]bool{}
	for _, n := range names(m.at.dir()) {
		r, err := readRecord(filepath.Join(m.at.dir(), n))
		if err != nil {
			return err
		}
		when, err := taken(ctx, m.at, n)
		if err != nil {
			return err
		}
		m.leaves = append(m.leaves, leaf{n, r, when})
		if r.Root == Sparse {
			images[r.Image] = true
		}
		for _, l := range slices.Backward(r.Layers) {
			if p := (streamPart{partLayer, l, m.encoding()}); !slices.Contains(m.Parts, p) {
				m.Parts = append(m.Parts, p)
			}
		}
	}
	slices.SortStableFunc(m.leaves, func(a, b leaf) int { return a.taken.Compare(b.taken) })
	if len(images) > 1 {
		return errdefs.New(errdefs.NotSupported, opMove+" "+m.name, "its roots stand on several images")
	}
	for ref := range images {
		img, err := m.s.Images(m.at.Pool).Get(ctx, ref)
		if err != nil {
			return err
		}
		m.Image = &img
		m.Parts = slices.Insert(m.Parts, 0, streamPart{partImage, ref, m.encoding()})
	}
	return nil
}

func (m *moving) copyAll(ctx context.Context) error {
	for i, p := range m.Parts {
		have, err := m.have(ctx, p)
		if err != nil {
			return err
		}
		if have {
			continue
		}
		if err := m.copy(ctx, i, p, Sparse, ""); err != nil {
			return err
		}
	}
	for i, l := range m.leaves {
		if err := m.copyLeaf(ctx, len(m.Parts)+i, l); err != nil {
			return fmt.Errorf("copy %s: %w", l.name, err)
		}
	}
	return m.pool.Sync(ctx)
}

// copyLeaf copies a dataset of the zone by way of a snapshot, which has the
// name that btrfs is to give it.
func (m *moving) copyLeaf(ctx context.Context, i int, l leaf) error {
	own := path.Join(m.tmp, ".own", "active")
	if err := m.at.Pool.Snapshot(ctx, m.at.dataset(l.name), own, true); err != nil {
		return err
	}
	if err := m.copy(ctx, i, streamPart{partZone, m.name, m.encoding()}, l.record.Root, own); err != nil {
		return err
	}
	if err := m.at.Pool.Delete(ctx, own); err != nil {
		return err
	}
	received := path.Join(m.dir(i), "active")
	if err := m.pool.Snapshot(ctx, received, path.Join(m.tmp, m.name, l.name), false); err != nil {
		return err
	}
	return m.pool.Delete(ctx, received)
}

func (m *moving) copy(ctx context.Context, i int, p streamPart, root, own string) error {
	r, w := io.Pipe()
	sent := make(chan struct{})
	in := &lateReader{Reader: r, start: func() {
		go func() {
			defer close(sent)
			w.CloseWithError(m.s.sendPart(ctx, m.at.Pool, p, own, m.tmp, w))
		}()
	}}
	err := m.unpack(ctx, i, p, root, in, func() error {
		_, err := io.Copy(io.Discard, in)
		return err
	})
	_ = r.Close()
	in.once.Do(func() { close(sent) }) // nobody read: nothing was started
	<-sent
	return err
}

// lateReader starts what it reads from when it is read first, so that no
// program runs while the place for what it sends is being made.
type lateReader struct {
	io.Reader
	once  sync.Once
	start func()
}

// Read reads, having started the source.
func (l *lateReader) Read(b []byte) (int, error) {
	l.once.Do(l.start)
	return l.Reader.Read(b)
}

// place puts what the zone stands on in place, then the zone.
func (m *moving) place(ctx context.Context) error {
	k, err := m.s.lockLayers(ctx, opMove+" "+m.name, m.pool)
	if err != nil {
		return err
	}
	defer k.Unlock()
	image := ""
	for i, p := range m.Parts {
		dataset := path.Join(m.dir(i), "active")
		if p.Kind == partImage {
			image, err = m.placeImage(ctx, dataset)
		} else {
			err = m.placeLayer(ctx, dataset, p.ID)
		}
		if err != nil {
			return err
		}
	}
	for _, l := range m.leaves {
		if err := m.settle(ctx, l, image); err != nil {
			return err
		}
	}
	if err := m.pool.Sync(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(m.pool.Path("zones"), 0o700); err != nil {
		return err
	}
	return host.RenameNew(m.pool.Path(path.Join(m.tmp, m.name)), m.pool.Path(path.Join("zones", m.name)))
}

// settle writes into a copied record what the new pool has changed.
func (m *moving) settle(ctx context.Context, l leaf, image string) error {
	dataset := path.Join(m.tmp, m.name, l.name)
	r := l.record
	if r.Root == Sparse {
		r.Image = image
	}
	snapshot := strings.HasPrefix(l.name, "@")
	if snapshot {
		r.Taken = &l.taken
	}
	if err := writeRecord(m.pool.Path(dataset), r); err != nil {
		return err
	}
	if !snapshot {
		return nil
	}
	return m.pool.SetReadOnly(ctx, dataset, true)
}

func (s *Service) mendMove(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	if j.Step == "begin" {
		return "nothing was moved", nil
	}
	source, err := s.Pools.Open(ctx, j.Detail)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, s.removeArrival(ctx, pool, path.Join("tmp", j.ID))
	}
	if err != nil {
		return "", err
	}
	at := Place{source, j.Zones[0]}
	if _, err := os.Stat((Place{pool, at.Name}).dir()); err == nil && j.Step != "copy" {
		return "finished it; the zone is in pool " + j.Pool, s.finishMove(ctx, at, pool, j.ID)
	}
	tmp := path.Join("tmp", j.ID)
	err = errors.Join(s.removeArrival(ctx, pool, tmp), s.removeArrival(ctx, source, tmp))
	s.tidyLayers(ctx, pool)
	return "took it back; the zone is in pool " + j.Detail, err
}
