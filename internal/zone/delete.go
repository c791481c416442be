package zone

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// Delete removes a zone with its snapshots, from whatever state it is in. One
// that runs is halted first if force is set, and refused otherwise.
func (s *Service) Delete(ctx context.Context, name string, force bool) error {
	l, err := s.lock(ctx, "delete", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	if !force {
		if err := s.idle("delete", at); err != nil {
			return err
		}
	}
	j, err := s.begin(opDelete, at.Pool.Info().Name, name)
	if err != nil {
		return err
	}
	if err := s.teardown(ctx, name); err != nil {
		j.end()
		return err
	}
	trash := path.Join("trash", j.ID)
	if err := os.MkdirAll(at.Pool.Path("trash"), 0o700); err != nil {
		j.end()
		return err
	}
	if err := j.step("remove", ""); err != nil {
		j.end()
		return err
	}
	if err := os.Rename(at.dir(), at.Pool.Path(trash)); err != nil {
		j.end()
		return err
	}
	// From here on the zone is gone; a failure below leaves the entry for the
	// next command to finish.
	err = s.finishDelete(context.WithoutCancel(ctx), at.Pool, trash, name)
	j.endUnless(err)
	return err
}

func (s *Service) finishDelete(ctx context.Context, pool storage.Pool, trash, name string) error {
	if err := s.removeTree(ctx, pool, trash); err != nil {
		return err
	}
	s.tidyLayers(ctx, pool)
	return errors.Join(
		os.RemoveAll(filepath.Join(pool.Path("shared"), "zones", name)),
		removeIfThere(s.logPath(name)),
	)
}

// Settle has the pools put their changes on disk, after which the space of what
// was deleted comes back within moments; by itself that takes half a minute.
func (s *Service) Settle(ctx context.Context) error {
	pools, err := s.openPools(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if err := p.Sync(ctx); err != nil {
			return err
		}
	}
	return nil
}

func removeIfThere(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ensureShared returns the directory of the pool that the zone sees read-only
// at SharedMount, making it if needed.
func (s *Service) ensureShared(ctx context.Context, pool storage.Pool, name string) (string, error) {
	dir := filepath.Join(pool.Path("shared"), "zones", name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	l, err := host.WaitLock(ctx, s.poolLock(pool, "shared"), s.patience())
	if err != nil {
		return "", err
	}
	defer l.Unlock()
	if err := pool.Create(ctx, "shared"); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", explainFull("create the shared dataset", pool, err)
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// ImageUsers names the zones that stand on an image, themselves or through a
// snapshot.
func (s *Service) ImageUsers(pool storage.Pool, ref string) ([]string, error) {
	seen := map[string]bool{}
	var names []string
	err := eachRecord(pool, func(r Record) {
		// A whole root shares blocks with the image but does not need it.
		if r.Image == ref && r.Root == Sparse && !seen[r.Name] {
			seen[r.Name] = true
			names = append(names, r.Name)
		}
	})
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Failed, "find the users of image "+ref, err)
	}
	return names, nil
}
