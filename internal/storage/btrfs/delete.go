package btrfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"zone/internal/storage"
)

// Delete removes a dataset, and the subvolumes that somebody made inside it.
// The kernel gives the space back in the background.
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
	if err := storage.CheckDataset(dataset); err != nil {
		return err
	}
	parent, err := p.parent(dataset)
	if err != nil {
		return err
	}
	defer parent.Close()
	name := path.Base(dataset)
	err = subvolDestroy(parent, name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A plain directory, or subvolumes inside.
	subvol, openErr := p.open(dataset)
	if openErr != nil {
		return openErr
	}
	defer subvol.Close()
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	if err := destroyInner(ctx, subvol); err != nil {
		return err
	}
	return subvolDestroy(parent, name)
}

// destroyInner deletes all subvolumes directly inside one, each with its own
// inner ones first.
func destroyInner(ctx context.Context, subvol *os.File) error {
	// Nothing can be deleted from a read-only subvolume.
	if err := setReadOnly(subvol, false); err != nil {
		return err
	}
	tree, err := treeOf(subvol)
	if err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		refs, err := search(subvol, rootTree, tree, typeRootRef, 0, ^uint64(0))
		if err != nil || len(refs) == 0 {
			return err
		}
		for _, ref := range refs {
			if err := destroyRef(ctx, subvol, tree, ref); err != nil {
				return err
			}
		}
	}
}

// destroyRef deletes the subvolume that a ROOT_REF item of subvol is about.
// The item holds the inode of the directory it is in, a sequence number and
// the length of its name, then the name.
func destroyRef(ctx context.Context, subvol *os.File, tree uint64, ref item) error {
	if len(ref.data) < 18 || len(ref.data) < 18+int(binary.LittleEndian.Uint16(ref.data[16:])) {
		return fmt.Errorf("subvolume %d: reference of %d bytes", ref.offset, len(ref.data))
	}
	name := string(ref.data[18 : 18+int(binary.LittleEndian.Uint16(ref.data[16:]))])
	dir, err := pathOf(subvol, tree, binary.LittleEndian.Uint64(ref.data))
	if err != nil {
		return fmt.Errorf("inner subvolume %s: %w", name, err)
	}
	parent, err := openBeneath(subvol, path.Clean("./"+dir), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer parent.Close()
	err = subvolDestroy(parent, name)
	if errors.Is(err, unix.ENOTEMPTY) {
		inner, openErr := openBeneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if openErr != nil {
			return openErr
		}
		defer inner.Close()
		if err = destroyInner(ctx, inner); err == nil {
			err = subvolDestroy(parent, name)
		}
	}
	if err != nil {
		return fmt.Errorf("inner subvolume %s: %w", path.Join(dir, name), err)
	}
	return nil
}
