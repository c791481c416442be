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

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// Mend finishes or takes back what interrupted commands left behind, and
// clears away zones that ended by themselves. It says what it did through
// Note. Zones that somebody else is working on are left to them.
func (s *Service) Mend(ctx context.Context) error {
	var errs []error
	for _, p := range s.abandonedEntries() {
		e, ok := peek(p)
		if !ok {
			continue
		}
		l, err := s.lockOnly(ctx, "mend", 0, e.Zones...)
		if err != nil {
			continue // whoever holds it mends it
		}
		errs = append(errs, s.mendOwned(ctx, p, nil))
		l.unlock()
	}
	for _, name := range s.ended() {
		l, err := s.lockOnly(ctx, "mend", 0, name)
		if err != nil {
			continue
		}
		errs = append(errs, s.clearEnded(ctx, name))
		l.unlock()
	}
	return errors.Join(errs...)
}

func peek(path string) (Entry, bool) {
	j := abandoned(path, 0)
	if j == nil {
		return Entry{}, false
	}
	defer j.lock.Unlock()
	return j.Entry, true
}

// mendOwned mends the abandoned entry at p. The caller holds the locks of its
// zones; names, if given, are the zones whose entries are wanted.
func (s *Service) mendOwned(ctx context.Context, p string, names []string) error {
	j := abandoned(p, time.Second)
	if j == nil {
		return nil
	}
	if names != nil && !overlap(names, j.Zones) {
		j.lock.Unlock()
		return nil
	}
	done, err := s.mendEntry(ctx, j)
	if err != nil {
		j.lock.Unlock()
		return fmt.Errorf("mend the interrupted %s of %s: %w", j.Op, some(j.Zones), err)
	}
	s.Note("`zone %s` of %s (process %d, %s) was cut off at step %q: %s",
		j.Op, some(j.Zones), j.PID, j.Started.Format("2006-01-02 15:04:05"), j.Step, done)
	j.end()
	return nil
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(n string) bool { return slices.Contains(b, n) })
}

// some names zones, but not fifty of them.
func some(zones []string) string {
	if len(zones) > 3 {
		return fmt.Sprintf("%s and %d more", zones[0], len(zones)-1)
	}
	return strings.Join(zones, ", ")
}

// mendEntry leaves every zone of the entry in a state that users know, and
// returns what it did. It may be cut off and repeated.
func (s *Service) mendEntry(ctx context.Context, j *journal) (string, error) {
	switch j.Op {
	case opCreate, opClone:
		return s.mendNew(ctx, j)
	case opBoot, opMount:
		return "stopped what had started; the zone is installed", s.teardown(ctx, j.Zones[0])
	case opHalt:
		return "finished it; the zone is installed", s.teardown(ctx, j.Zones[0])
	case opRollback:
		return s.mendRollback(ctx, j)
	case opDelete:
		return s.mendDelete(ctx, j)
	case opCopy:
		return s.mendCopy(ctx, j)
	case opBECreate:
		return s.mendBECreate(ctx, j)
	case opBEActivate:
		return s.mendBEActivate(ctx, j)
	case opSend:
		return s.mendSend(ctx, j)
	case opReceive:
		return s.mendReceive(ctx, j)
	case opMove:
		return s.mendMove(ctx, j)
	}
	return "", fmt.Errorf("unknown operation %q in the journal", j.Op)
}

// poolGone is said of entries about zones that went with their pool.
const poolGone = "its pool has been destroyed since"

func (s *Service) mendNew(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	if err := s.removeUnplaced(ctx, pool, path.Join("tmp", j.ID)); err != nil {
		return "", err
	}
	s.tidyLayers(ctx, pool)
	var made, missing []string
	for _, n := range j.Zones {
		if _, err := os.Stat(pool.Path(path.Join("zones", n))); err == nil {
			made = append(made, n)
		} else {
			missing = append(missing, n)
		}
	}
	switch {
	case len(made) == 0:
		return "removed the unfinished copy; nothing was created", nil
	case len(missing) == 0:
		return "all of it was complete", nil
	}
	return fmt.Sprintf("%s complete; %s not created", some(made), some(missing)), nil
}

func (s *Service) mendCopy(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	return "removed the unfinished copy; the zone was not touched", errors.Join(
		s.removeTree(ctx, pool, path.Join("tmp", j.ID)),
		removeIfThere(filepath.Join(s.Run, "zones", "."+j.ID)),
	)
}

func (s *Service) mendRollback(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	at := Place{pool, j.Zones[0]}
	tmp := path.Join("tmp", j.ID)
	now, unreadable := readRecord(at.activePath(""))
	if unreadable == nil && now.Rewritten == j.ID {
		return "finished it", s.keepReplaced(ctx, at, j.ID, j.Detail)
	}
	if unreadable != nil && j.Step == stepExchange {
		// Only one of the two roots carries the entry's mark. The one that
		// goes must be seen to be the copy.
		copied, err := readRecord(pool.Path(path.Join(tmp, "active")))
		if err != nil || copied.Rewritten != j.ID {
			return "", fmt.Errorf("tell the old root from the new one: %w", unreadable)
		}
	}
	return "took it back; the zone is as before", s.removeTree(ctx, pool, tmp)
}

func (s *Service) mendDelete(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	if err := s.teardown(ctx, j.Zones[0]); err != nil {
		return "", err
	}
	trash := path.Join("trash", j.ID)
	if _, err := os.Stat(pool.Path(trash)); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat((Place{pool, j.Zones[0]}).dir()); err == nil {
			return "nothing was deleted; the zone is halted", nil
		}
	}
	return "finished it", s.finishDelete(ctx, pool, trash, j.Zones[0])
}

// tidyLayers drops unused layers. That they stay for now is no failure of the
// change that set them free.
func (s *Service) tidyLayers(ctx context.Context, pool storage.Pool) {
	if err := s.dropUnusedLayers(ctx, pool); err != nil {
		s.Note("layers no zone needs any more stay for now: %v", err)
	}
}

// removeTree deletes a directory of the pool with the datasets in it. One that
// is gone is success.
func (s *Service) removeTree(ctx context.Context, pool storage.Pool, dir string) error {
	root := pool.Path(dir)
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		sub := path.Join(dir, e.Name())
		if isDataset(e.Name()) {
			err = pool.Delete(ctx, sub)
		} else if e.IsDir() {
			err = s.removeTree(ctx, pool, sub)
		} else {
			err = os.Remove(filepath.Join(root, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	if err := os.Remove(root); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isDataset tells a dataset in a zone's directory from a plain directory.
func isDataset(name string) bool {
	return name == "active" || strings.HasPrefix(name, "@") || strings.HasPrefix(name, bePrefix)
}

// removeUnplaced deletes a directory of the pool with the directories of zones
// in it, whatever their names.
func (s *Service) removeUnplaced(ctx context.Context, pool storage.Pool, dir string) error {
	entries, err := os.ReadDir(pool.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.removeTree(ctx, pool, path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return removeIfThere(pool.Path(dir))
}

// ended lists zones whose first process is gone although nobody halted them.
func (s *Service) ended() []string {
	entries, err := os.ReadDir(filepath.Join(s.Run, "zones"))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if r, err := s.readRunning(e.Name()); err == nil && !r.alive() {
			names = append(names, e.Name())
		}
	}
	return names
}

func (s *Service) clearEnded(ctx context.Context, name string) error {
	r, err := s.readRunning(name)
	if err != nil || r.alive() {
		return nil
	}
	if err := s.teardown(ctx, name); err != nil {
		return err
	}
	if r.Mode == modeBoot {
		s.Note("zone %s had ended by itself; it is installed", name)
	}
	return nil
}

// layersInUse names every layer that a zone or one of its snapshots stands on.
// A record that cannot be read is an error: its layers are not known, so none
// may be taken for unused.
func (s *Service) layersInUse(pool storage.Pool) (map[string]bool, error) {
	used := map[string]bool{}
	err := eachRecord(pool, func(r Record) {
		for _, l := range r.Layers {
			used[l] = true
		}
	})
	return used, err
}

// eachRecord calls f for the record of every zone, snapshot and boot
// environment of a pool, and of the roots in tmp that a rollback has exchanged: those first, for
// they move from there to the zone. The other way takes the lock of the layers.
func eachRecord(pool storage.Pool, f func(Record)) error {
	if err := eachUnplaced(pool, f); err != nil {
		return err
	}
	zones, err := os.ReadDir(pool.Path("zones"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, z := range zones {
		dir := pool.Path(path.Join("zones", z.Name()))
		datasets, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted this moment
		}
		if err != nil {
			return err
		}
		for _, d := range datasets {
			r, err := readRecord(filepath.Join(dir, d.Name()))
			if err != nil {
				if _, gone := os.Stat(filepath.Join(dir, d.Name())); errors.Is(gone, fs.ErrNotExist) {
					continue
				}
				return err
			}
			f(r)
		}
	}
	return nil
}

// eachUnplaced calls f for the records of roots in tmp. Those without a record
// are not finished and hold nothing that anybody needs.
func eachUnplaced(pool storage.Pool, f func(Record)) error {
	work, err := os.ReadDir(pool.Path("tmp"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, w := range work {
		if !w.IsDir() {
			continue // the lock of those who build images
		}
		r, err := readRecord(pool.Path(path.Join("tmp", w.Name(), "active")))
		if err == nil {
			f(r)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// dropUnusedLayers deletes layers that nothing stands on any more. The lock of
// the layers keeps a clone from choosing one meanwhile.
func (s *Service) dropUnusedLayers(ctx context.Context, pool storage.Pool) error {
	l, err := s.lockLayers(ctx, "drop unused layers", pool)
	if err != nil {
		return err
	}
	defer l.Unlock()
	return s.dropLayersLocked(ctx, pool)
}

func (s *Service) dropLayersLocked(ctx context.Context, pool storage.Pool) error {
	layers, err := os.ReadDir(pool.Path("layers"))
	if errors.Is(err, fs.ErrNotExist) || len(layers) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	used, err := s.layersInUse(pool)
	if err != nil {
		return err
	}
	for _, e := range layers {
		if !used[e.Name()] {
			if err := pool.Delete(ctx, path.Join("layers", e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// lockLayers takes the lock under which layers are chosen, dropped, and moved
// from one user to another. It is taken after those of zones, never before.
func (s *Service) lockLayers(ctx context.Context, what string, pool storage.Pool) (*host.Lock, error) {
	l, err := host.WaitLock(ctx, s.poolLock(pool, "layers"), s.patience())
	if errors.Is(err, host.ErrLocked) {
		return nil, errdefs.New(errdefs.Busy, what, "clones are being made in pool %s", pool.Info().Name)
	}
	return l, err
}

func (s *Service) poolLock(pool storage.Pool, what string) string {
	return filepath.Join(s.Run, "locks", "pools", pool.Info().Name+"."+what)
}
