// Package dir keeps a pool in a plain directory of any file system that has
// extended attributes. A dataset is a directory tree with a mark on its root;
// a snapshot is a copy, which shares the files' blocks where the file system
// can clone files. Nothing is immutable. Without root it works as well, but
// leaves out owners, device nodes and privileged attributes.
package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

const (
	// markName is the attribute on the root of each dataset. It tells datasets
	// from the plain directories that hold them, so that a wrong name can never
	// delete all zones.
	markName = "user.zone.dataset"
	workDir  = ".work"  // datasets being made; each is locked by its maker
	trashDir = ".trash" // datasets being deleted
)

// Pool is a directory with datasets.
type Pool struct {
	info storage.Info
}

var _ storage.Pool = (*Pool)(nil)

// Info describes the pool.
func (p *Pool) Info() storage.Info { return p.info }

// Path returns where the dataset's files are.
func (p *Pool) Path(dataset string) string { return filepath.Join(p.info.Path, dataset) }

// Create makes an empty dataset.
func (p *Pool) Create(ctx context.Context, dataset string) error {
	err := p.place(ctx, dataset, func(*os.File) error { return nil })
	return p.wrap("create", dataset, err)
}

// Snapshot copies a dataset. Files that change meanwhile are copied as they
// are found: the copy is no single moment when something writes.
func (p *Pool) Snapshot(ctx context.Context, from, to string, _ bool) error {
	source, err := p.open(from)
	if err == nil {
		defer source.Close()
		err = p.place(ctx, to, func(target *os.File) error { return copyTree(ctx, source, target) })
	}
	return p.wrap("snapshot "+from+" as", to, err)
}

// SetReadOnly does nothing to a dataset that exists.
func (p *Pool) SetReadOnly(_ context.Context, dataset string, _ bool) error {
	f, err := p.open(dataset)
	if err != nil {
		return p.wrap("set read-only", dataset, err)
	}
	return f.Close()
}

// Delete moves the dataset to the trash and empties it.
func (p *Pool) Delete(ctx context.Context, dataset string) error {
	err := p.delete(ctx, dataset)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return p.wrap("delete", dataset, err)
}

func (p *Pool) delete(ctx context.Context, dataset string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.checkParent(dataset); err != nil {
		return err
	}
	f, err := p.open(dataset)
	if err != nil {
		return err
	}
	defer f.Close()
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // keeps sweep from deleting beside us
	grave := p.Path(path.Join(trashDir, rand.Text()))
	if err := os.Rename(p.Path(dataset), grave); err != nil {
		return err
	}
	return os.RemoveAll(grave)
}

// Rename moves a dataset to a free name.
func (p *Pool) Rename(ctx context.Context, from, to string) error {
	return p.wrap("rename "+from+" to", to, p.rename(ctx, from, to))
}

func (p *Pool) rename(ctx context.Context, from, to string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := p.open(from)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := p.makeParents(to); err != nil {
		return err
	}
	return host.RenameNew(p.Path(from), p.Path(to))
}

// Used returns the blocks of all files, shared with other datasets or not.
func (p *Pool) Used(ctx context.Context, dataset string) (int64, error) {
	f, err := p.open(dataset)
	if err != nil {
		return 0, p.wrap("used space of", dataset, err)
	}
	_ = f.Close()
	n, err := blocks(ctx, p.Path(dataset))
	return n, p.wrap("used space of", dataset, err)
}

// Space returns the size of the file system that the directory is on.
func (p *Pool) Space(context.Context) (storage.Space, error) {
	return storage.SpaceAt(p.info.Name, p.info.Path)
}

// Sync writes the whole file system to disk.
func (p *Pool) Sync(context.Context) error {
	f, err := os.Open(p.info.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	return p.wrap("sync", "", unix.Syncfs(int(f.Fd())))
}

// place makes a dataset: filled in the work directory, then renamed to its
// name, so that it is there whole or not at all.
func (p *Pool) place(ctx context.Context, dataset string, fill func(*os.File) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.makeParents(dataset); err != nil {
		return err
	}
	if _, err := os.Lstat(p.Path(dataset)); err == nil {
		return &fs.PathError{Op: "make", Path: dataset, Err: fs.ErrExist}
	}
	work := p.Path(path.Join(workDir, rand.Text()))
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	err := fillLocked(work, fill)
	if err == nil {
		err = host.RenameNew(work, p.Path(dataset))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(work))
	}
	return nil
}

// fillLocked fills and marks a directory. The lock on it tells sweep that its
// maker lives.
func fillLocked(work string, fill func(*os.File) error) error {
	f, err := os.Open(work)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", work, err)
	}
	if err := unix.Fsetxattr(int(f.Fd()), markName, []byte("1"), 0); err != nil {
		return err
	}
	return fill(f)
}

// open opens a dataset.
func (p *Pool) open(dataset string) (*os.File, error) {
	if err := p.checkParent(dataset); err != nil {
		return nil, err
	}
	f, err := openBeneath(p.info.Path, dataset)
	if err != nil {
		return nil, err
	}
	if !marked(f) {
		_ = f.Close()
		return nil, errdefs.New(errdefs.Usage, "dataset "+dataset, "a plain directory is there")
	}
	return f, nil
}

// checkParent refuses bad names and those inside a dataset. A directory that is
// missing cannot be inside one.
func (p *Pool) checkParent(dataset string) error {
	if err := storage.CheckDataset(dataset); err != nil {
		return err
	}
	for dir := path.Dir(dataset); dir != "."; dir = path.Dir(dir) {
		f, err := openBeneath(p.info.Path, dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		inside := marked(f)
		_ = f.Close()
		if inside {
			return errdefs.New(errdefs.Usage, "dataset "+dataset, "it is or would be inside another dataset")
		}
	}
	return nil
}

func (p *Pool) makeParents(dataset string) error {
	if err := p.checkParent(dataset); err != nil {
		return err
	}
	return os.MkdirAll(p.Path(path.Dir(dataset)), 0o700)
}

func (p *Pool) wrap(op, dataset string, err error) error {
	return storage.Explain(p.info.Name, op, dataset, err)
}

func marked(f *os.File) bool {
	n, err := unix.Fgetxattr(int(f.Fd()), markName, nil)
	return err == nil && n > 0
}

// openBeneath opens a directory below root without following any link.
func openBeneath(root, name string) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path.Join(root, name), Err: err}
		}
		return os.NewFile(uintptr(fd), path.Join(root, name)), nil
	}
}

// blocks returns the space of a tree's files, each hard link counted once.
// Files that vanish meanwhile do not count.
func blocks(ctx context.Context, root string) (int64, error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	var sum int64
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(name, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if id := (inode{st.Dev, st.Ino}); err == nil && !seen[id] {
			seen[id] = true
			sum += st.Blocks * 512
		}
		return errors.Join(err, ctx.Err())
	})
	return sum, err
}
