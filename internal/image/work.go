package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// work is one unfinished change: a build or a deletion. Its datasets bear a
// random id, and a lock file with that id is held as long as its process
// lives. A lock that is free therefore means leftovers, which Clean removes.
type work struct {
	store *Store
	id    string
	lock  *host.Lock
}

// begin takes the lock of a new piece of work. what is told to the user
// should this process die: "unfinished build of image web".
func (s *Store) begin(what string) (*work, error) {
	for {
		w := &work{store: s, id: strings.ToLower(rand.Text()[:12])}
		lock, err := host.TryLock(s.lockPath(w.id))
		if errors.Is(err, host.ErrLocked) {
			continue // Clean looked at the file before we had locked it
		}
		if err != nil {
			return nil, err
		}
		w.lock = lock
		if _, err := io.WriteString(lock.File(), what); err != nil {
			lock.Remove()
			return nil, fmt.Errorf("write %s: %w", lock.File().Name(), err)
		}
		return w, nil
	}
}

// dataset is where the work is done.
func (w *work) dataset() string { return tmpDir + "/" + workPrefix + w.id }

// staged is the dataset's place beside the images. A read-only subvolume
// cannot move to another directory but can be renamed in its own, so an image
// becomes read-only here and only then visible.
func (w *work) staged() string { return imagesDir + "/." + workPrefix + w.id }

// end deletes what the work has left and gives up its lock. It is the undo of
// every step and does nothing to an image that is in place. It works under a
// cancelled context too.
func (w *work) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	for _, d := range []string{w.dataset(), w.staged()} {
		if err := w.store.Pool.Delete(ctx, d); err != nil {
			w.lock.Unlock() // the file stays, so that Clean tries again
			return fmt.Errorf("delete %s: %w", d, err)
		}
	}
	w.lock.Remove()
	return nil
}

func (s *Store) lockPath(id string) string {
	return filepath.Join(s.Pool.Path(tmpDir), workPrefix+id+".lock")
}

// Clean removes what builds and deletions that were killed have left. It
// returns one line for each, as "unfinished build of image web".
func (s *Store) Clean(ctx context.Context) ([]string, error) {
	ids, err := s.workIDs()
	if err != nil {
		return nil, err
	}
	var removed []string
	var failed []error
	for _, id := range ids {
		lock, err := host.TryLock(s.lockPath(id))
		if errors.Is(err, host.ErrLocked) {
			continue // its process is alive
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		what := "unfinished work on an image"
		if text, err := io.ReadAll(io.LimitReader(lock.File(), 512)); err == nil && len(text) > 0 {
			what = string(text)
		}
		if err := (&work{store: s, id: id, lock: lock}).end(ctx); err != nil {
			failed = append(failed, err)
			continue
		}
		removed = append(removed, what)
	}
	return removed, errors.Join(failed...)
}

// workIDs lists the ids found in lock files and datasets, each once.
func (s *Store) workIDs() ([]string, error) {
	var ids []string
	for dir, prefix := range map[string]string{tmpDir: workPrefix, imagesDir: "." + workPrefix} {
		entries, err := os.ReadDir(s.Pool.Path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for unfinished images: %w", err)
		}
		for _, e := range entries {
			if id, ok := strings.CutPrefix(e.Name(), prefix); ok {
				ids = append(ids, strings.TrimSuffix(id, ".lock"))
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Delete removes the image that ref names. inUse says which zones need it:
// with any, the image stays and the error is errdefs.Busy. A name without a
// version is refused when there are several.
func (s *Store) Delete(ctx context.Context, ref string, inUse func(context.Context, Image) ([]string, error)) error {
	img, err := s.Deletable(ctx, ref, inUse)
	if err != nil {
		return err
	}
	w, err := s.begin("unfinished deletion of image " + img.Ref())
	if err != nil {
		return err
	}
	// Out of sight in one step: nobody ever sees half an image.
	err = s.Pool.Rename(ctx, s.Dataset(img), w.staged())
	if err := errors.Join(err, w.end(ctx)); err != nil {
		return fmt.Errorf("delete image %s: %w", img.Ref(), err)
	}
	return nil
}

// Deletable returns the image that Delete would remove, or the error with
// which it would refuse.
func (s *Store) Deletable(ctx context.Context, ref string, inUse func(context.Context, Image) ([]string, error)) (Image, error) {
	found, err := s.matching(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	if len(found) > 1 {
		return Image{}, errdefs.New(errdefs.Usage, "delete image "+ref, "it has %d versions: %s", len(found), refs(found)).
			WithHint("zone image delete %s", found[len(found)-1].Ref())
	}
	img := found[0]
	zones, err := inUse(ctx, img)
	if err != nil {
		return Image{}, fmt.Errorf("delete image %s: find its zones: %w", img.Ref(), err)
	}
	if len(zones) > 0 {
		return Image{}, errdefs.New(errdefs.Busy, "delete image "+img.Ref(), "in use by %s", nameSome(zones, 8)).
			WithHint("zone delete %s", zones[0])
	}
	return img, nil
}

func nameSome(names []string, limit int) string {
	if len(names) <= limit {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:limit], ", "), len(names)-limit)
}
