package zone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

// Snapshot is a read-only copy of a zone's root at one moment.
type Snapshot struct {
	Zone    string    `json:"zone"`
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Used    int64     `json:"used"` // bytes that only the snapshot holds; -1 where the pool cannot tell
}

// Snapshot keeps the zone's root as it is now under NAME@snap. The zone may be
// running; what it holds in memory and has not written is not in it.
func (s *Service) Snapshot(ctx context.Context, name, snap string) error {
	if err := config.ValidSnapshotName(snap); err != nil {
		return err
	}
	l, err := s.lock(ctx, "snapshot", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	return s.snapshotLocked(ctx, name, snap)
}

func (s *Service) snapshotLocked(ctx context.Context, name, snap string) error {
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	err = at.Pool.Snapshot(ctx, at.active(), at.dataset("@"+snap), true)
	if errors.Is(err, fs.ErrExist) {
		return errdefs.New(errdefs.WrongState, "snapshot "+name+"@"+snap, "a snapshot of this name exists already")
	}
	return explainFull("snapshot "+name+"@"+snap, at.Pool, err)
}

// Snapshots lists the snapshots of a zone, oldest first.
func (s *Service) Snapshots(ctx context.Context, name string) ([]Snapshot, error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(at.dir())
	if err != nil {
		return nil, err
	}
	var list []Snapshot
	for _, e := range entries {
		snap, ok := strings.CutPrefix(e.Name(), "@")
		if !ok {
			continue
		}
		used, err := at.Pool.Used(ctx, at.dataset(e.Name()))
		if err != nil {
			used = -1
		}
		created, err := taken(ctx, at, e.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, Snapshot{Zone: name, Name: snap, Created: created, Used: used})
	}
	slices.SortStableFunc(list, func(a, b Snapshot) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// taken returns when a snapshot was taken. One that came from another pool was
// made later there, and holds the time in its record.
func taken(ctx context.Context, at Place, leaf string) (time.Time, error) {
	if r, err := readRecord(filepath.Join(at.dir(), leaf)); err == nil && r.Taken != nil {
		return *r.Taken, nil
	}
	return at.Pool.Created(ctx, at.dataset(leaf))
}

// DeleteSnapshot removes NAME@snap. One that is gone is NotFound.
func (s *Service) DeleteSnapshot(ctx context.Context, name, snap string) error {
	l, err := s.lock(ctx, "delete snapshot of", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.findSnapshot(ctx, name, snap)
	if err != nil {
		return err
	}
	if err := at.Pool.Delete(ctx, at.dataset("@"+snap)); err != nil {
		return err
	}
	s.tidyLayers(ctx, at.Pool)
	return nil
}

func (s *Service) findSnapshot(ctx context.Context, name, snap string) (Place, error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return at, err
	}
	if config.ValidSnapshotName(snap) == nil {
		if _, err := os.Stat(at.Pool.Path(at.dataset("@" + snap))); err == nil {
			return at, nil
		}
	}
	list, err := s.Snapshots(ctx, name)
	if err != nil {
		return at, err
	}
	e := errdefs.New(errdefs.NotFound, "snapshot "+name+"@"+snap, "no such snapshot")
	names := make([]string, len(list))
	for i, sn := range list {
		names[i] = sn.Name
	}
	if near := config.Nearest(snap, names); near != "" {
		e.Why = fmt.Sprintf("no such snapshot; the nearest name is %q", near)
	}
	return at, e.WithHint("zone snapshots %s", name)
}

// Rollback makes the zone's root what it was at NAME@snap. The zone must not
// run. Nothing is destroyed: the root that is replaced stays as the snapshot
// keepAs (named by the time when empty), and newer snapshots stay as they are.
// The configuration is not rolled back. It returns the name of what was kept.
func (s *Service) Rollback(ctx context.Context, name, snap, keepAs string) (string, error) {
	l, err := s.lock(ctx, "rollback", name)
	if err != nil {
		return "", err
	}
	defer l.unlock()
	return s.rollbackLocked(ctx, name, snap, keepAs)
}

func (s *Service) rollbackLocked(ctx context.Context, name, snap, keepAs string) (string, error) {
	at, err := s.findSnapshot(ctx, name, snap)
	if err != nil {
		return "", err
	}
	if err := s.idle("rollback", at); err != nil {
		return "", err
	}
	if keepAs == "" {
		keepAs = "before-rollback-" + time.Now().UTC().Format("20060102-150405.000")
	}
	if _, err := os.Stat(at.Pool.Path(at.dataset("@" + keepAs))); err == nil {
		return "", errdefs.New(errdefs.WrongState, "rollback "+name, "snapshot %s, which is to keep the present root, exists already", keepAs)
	}
	j, err := s.begin(opRollback, at.Pool.Info().Name, name)
	if err != nil {
		return "", err
	}
	if err := j.step("copy", keepAs); err != nil {
		j.end()
		return "", err
	}
	tmp := path.Join("tmp", j.ID)
	err = s.prepareRollback(ctx, at, snap, path.Join(tmp, "active"), j.ID)
	if err == nil {
		err = j.step(stepExchange, keepAs)
	}
	if err == nil {
		err = s.exchange(ctx, at, path.Join(tmp, "active"))
	}
	if err != nil {
		undo := s.removeTree(context.WithoutCancel(ctx), at.Pool, tmp)
		j.endUnless(undo)
		return "", explainFull("rollback "+name, at.Pool, errors.Join(err, undo))
	}
	err = s.keepReplaced(context.WithoutCancel(ctx), at, j.ID, keepAs)
	j.endUnless(err)
	return keepAs, err
}

// exchange swaps the zone's root with another dataset. The lock of the layers
// keeps whoever counts their users from seeing neither the old root in its
// place nor in tmp.
func (s *Service) exchange(ctx context.Context, at Place, dataset string) error {
	l, err := s.lockLayers(ctx, "rollback "+at.Name, at.Pool)
	if err != nil {
		return err
	}
	defer l.Unlock()
	return host.Exchange(at.Pool.Path(at.active()), at.Pool.Path(dataset))
}

// stepExchange is the step of a rollback in which the roots change places.
const stepExchange = "exchange"

// prepareRollback builds the root that is to be: the snapshot's files and
// layers, the present configuration and address.
func (s *Service) prepareRollback(ctx context.Context, at Place, snap, dataset, id string) error {
	if err := at.Pool.Snapshot(ctx, at.dataset("@"+snap), dataset, false); err != nil {
		return err
	}
	dir := at.Pool.Path(dataset)
	r, err := readRecord(dir)
	if err != nil {
		return err
	}
	if now, err := readRecord(at.activePath("")); err == nil {
		r.Address, r.Name, r.BE, r.Next = now.Address, now.Name, now.BE, now.Next
	}
	r.Rewritten, r.Taken = id, nil
	if z, err := readConfig(at.activePath("")); err == nil {
		if err := writeConfig(dir, z); err != nil {
			return err
		}
	}
	return writeRecord(dir, r)
}

// keepReplaced puts the replaced root, left in tmp by the exchange, in place as
// a snapshot. It may be repeated.
func (s *Service) keepReplaced(ctx context.Context, at Place, id, keepAs string) error {
	tmp := path.Join("tmp", id)
	kept := at.dataset("@" + keepAs)
	old := at.Pool.Path(path.Join(tmp, "active"))
	if _, err := os.Stat(old); err == nil {
		if err := os.Rename(old, at.Pool.Path(kept)); err != nil {
			return err
		}
	}
	if err := at.Pool.SetReadOnly(ctx, kept, true); err != nil {
		return err
	}
	return s.removeTree(ctx, at.Pool, tmp)
}

// FillFromZone returns a function that copies a zone's root into a directory,
// as the content of a new image. The zone may be running.
func (s *Service) FillFromZone(name string) func(ctx context.Context, dir string) error {
	return func(ctx context.Context, dir string) error {
		at, err := s.Find(ctx, name)
		if err != nil {
			return err
		}
		j, err := s.begin(opCopy, at.Pool.Info().Name, name)
		if err != nil {
			return err
		}
		tmp := path.Join("tmp", j.ID)
		defer func() {
			j.endUnless(s.removeTree(context.WithoutCancel(ctx), at.Pool, tmp))
		}()
		snap := path.Join(tmp, "active")
		if err := at.Pool.Snapshot(ctx, at.active(), snap, false); err != nil {
			return err
		}
		// The record of that moment: a rollback meanwhile changes the layers.
		r, err := readRecord(at.Pool.Path(snap))
		if err != nil {
			return err
		}
		return s.copyRoot(ctx, at.Pool, snap, r, dir, filepath.Join(s.Run, "zones", "."+j.ID))
	}
}
