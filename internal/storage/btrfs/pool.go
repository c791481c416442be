// Package btrfs keeps a pool in a btrfs file system, on a sparse file or on
// block devices. A dataset is a subvolume, so snapshots take no time by size
// and the kernel holds read-only ones so. It talks to the kernel by ioctl;
// only mkfs.btrfs is an outside program. It needs root, and the mount
// namespace in which the registry opened the pool.
package btrfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/storage"
)

// Pool is a mounted file system. It holds no descriptor between calls, so it
// never keeps the file system busy.
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
	err := p.in(ctx, dataset, subvolCreate)
	return p.wrap("create", dataset, err)
}

// Snapshot makes a copy that shares all blocks.
func (p *Pool) Snapshot(ctx context.Context, from, to string, readOnly bool) error {
	source, err := p.open(from)
	if err == nil {
		defer source.Close()
		err = p.in(ctx, to, func(parent *os.File, name string) error {
			return subvolSnapshot(source, parent, name, readOnly)
		})
	}
	return p.wrap("snapshot "+from+" as", to, err)
}

// SetReadOnly makes a dataset immutable, or writable again.
func (p *Pool) SetReadOnly(_ context.Context, dataset string, readOnly bool) error {
	return p.wrap("set read-only", dataset, p.setReadOnly(dataset, readOnly))
}

func (p *Pool) setReadOnly(dataset string, readOnly bool) error {
	f, err := p.open(dataset)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := setReadOnly(f, readOnly); err != nil {
		return err
	}
	is, err := isReadOnly(f)
	if err == nil && is != readOnly {
		err = errors.New("the kernel did not take the flag")
	}
	return err
}

// Rename moves a dataset to a free name. A read-only subvolume cannot change
// its parent, so it is writable for that moment.
func (p *Pool) Rename(ctx context.Context, from, to string) error {
	err := p.rename(ctx, from, to)
	if errors.Is(err, unix.EROFS) {
		if err = p.setReadOnly(from, false); err == nil {
			at := to
			if err = p.rename(ctx, from, to); err != nil {
				at = from
			}
			err = errors.Join(err, p.setReadOnly(at, true))
		}
	}
	return p.wrap("rename "+from+" to", to, err)
}

func (p *Pool) rename(ctx context.Context, from, to string) error {
	f, err := p.open(from)
	if err != nil {
		return err
	}
	_ = f.Close() // it is a dataset
	old, err := p.parent(from)
	if err != nil {
		return err
	}
	defer old.Close()
	return p.in(ctx, to, func(parent *os.File, name string) error {
		return unix.Renameat2(int(old.Fd()), path.Base(from), int(parent.Fd()), name, unix.RENAME_NOREPLACE)
	})
}

// Used returns the bytes that simple quotas charge to the dataset.
func (p *Pool) Used(_ context.Context, dataset string) (int64, error) {
	if !p.info.Can.Quota {
		return 0, errdefs.New(errdefs.NotSupported, "used space of "+dataset,
			"pool %s was made without simple quotas, which need Linux 6.7 or later", p.info.Name)
	}
	f, err := p.open(dataset)
	if err != nil {
		return 0, p.wrap("used space of", dataset, err)
	}
	defer f.Close()
	id, err := treeOf(f)
	if err != nil {
		return 0, p.wrap("used space of", dataset, err)
	}
	n, err := charged(f, id)
	return n, p.wrap("used space of", dataset, err)
}

// Space returns the size of the file system and what is free.
func (p *Pool) Space(context.Context) (storage.Space, error) {
	return storage.SpaceAt(p.info.Name, p.info.Path)
}

// Sync commits everything written so far.
func (p *Pool) Sync(context.Context) error {
	root, err := p.root()
	if err != nil {
		return err
	}
	defer root.Close()
	var none uint64
	return p.wrap("sync", "", ioctl(root, iocSync, &none))
}

// in calls f with the directory that is or will be the dataset's parent.
func (p *Pool) in(ctx context.Context, dataset string, f func(parent *os.File, name string) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := storage.CheckDataset(dataset); err != nil {
		return err
	}
	parent, err := p.parent(dataset)
	if errors.Is(err, fs.ErrNotExist) {
		if err = p.makeParents(dataset); err == nil {
			parent, err = p.parent(dataset)
		}
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return f(parent, path.Base(dataset))
}

// parent opens the plain directory that holds a dataset. One inside a dataset
// is refused: datasets never nest.
func (p *Pool) parent(dataset string) (*os.File, error) {
	f, err := p.openPath(path.Dir(dataset), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	tree, err := treeOf(f)
	if err == nil && tree != topLevel {
		err = errdefs.New(errdefs.Usage, "dataset "+dataset, "it is or would be inside another dataset")
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// makeParents makes the plain directories above a dataset.
func (p *Pool) makeParents(dataset string) error {
	dir := path.Dir(dataset)
	if dir == "." {
		return nil
	}
	if err := p.makeParents(dir); err != nil {
		return err
	}
	parent, err := p.parent(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(dir), 0o700); err != nil && err != unix.EEXIST {
		return &fs.PathError{Op: "mkdir", Path: p.Path(dir), Err: err}
	}
	return nil
}

// open opens a dataset.
func (p *Pool) open(dataset string) (*os.File, error) {
	if err := storage.CheckDataset(dataset); err != nil {
		return nil, err
	}
	f, err := p.openPath(dataset, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != firstFreeObject {
		_ = f.Close()
		return nil, errdefs.New(errdefs.Usage, "dataset "+dataset, "a plain directory is there")
	}
	return f, nil
}

func (p *Pool) openPath(name string, flags int) (*os.File, error) {
	root, err := p.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openBeneath(root, name, flags)
}

func (p *Pool) root() (*os.File, error) { return os.Open(p.info.Path) }

// wrap names the operation and its object, and says a full pool in the
// user's words.
func (p *Pool) wrap(op, dataset string, err error) error {
	return storage.Explain(p.info.Name, op, dataset, err)
}

// openBeneath opens a path below dir without following any symbolic link.
func openBeneath(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path.Join(dir.Name(), name), Err: err}
		}
		return os.NewFile(uintptr(fd), path.Join(dir.Name(), name)), nil
	}
}
