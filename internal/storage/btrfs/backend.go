package btrfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// Backend makes and mounts btrfs pools.
type Backend struct {
	Runner host.Runner
}

var _ storage.Backend = Backend{}

// New returns the backend, which starts mkfs.btrfs through the runner.
func New(runner host.Runner) Backend { return Backend{Runner: runner} }

// Make makes the file system and mounts it.
func (b Backend) Make(ctx context.Context, rec storage.Record, at string) (storage.Pool, error) {
	if rec.File != "" {
		if err := makeFile(rec.File, rec.Size); err != nil {
			return nil, err
		}
	}
	if err := b.mkfs(ctx, rec); err != nil {
		return nil, err
	}
	if err := mount(rec, at); err != nil {
		return nil, err
	}
	if err := setUp(rec, at); err != nil {
		return nil, err
	}
	return newPool(rec, at)
}

func makeFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

func (b Backend) mkfs(ctx context.Context, rec storage.Record) error {
	_, err := b.Runner.Run(ctx, host.Cmd{Name: "mkfs.btrfs", Args: mkfsArgs(rec), Timeout: 10 * time.Minute})
	if host.IsMissing(err) {
		return errdefs.New(errdefs.NotSupported, "make file system", "mkfs.btrfs is not installed").
			WithHint("apt-get install btrfs-progs, or use --backend dir")
	}
	var c *host.CommandError
	if errors.As(err, &c) && !rec.Force && strings.Contains(c.Stderr, "-f") {
		return errdefs.Wrap(errdefs.WrongState, "make file system", err).
			WithHint("add --force if what is on the device may be lost")
	}
	return err
}

// setUp does what a new file system needs before its first dataset.
func setUp(rec storage.Record, at string) error {
	root, err := os.Open(at)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Chmod(0o700); err != nil {
		return err
	}
	if !rec.NoQuota {
		if _, err := enableSimpleQuota(root); err != nil {
			return fmt.Errorf("enable simple quotas: %w", err)
		}
	}
	return host.WriteJSON(filepath.Join(at, storage.HeaderName), rec.Header(), true)
}

// Opened returns the pool when its file system is mounted at "at".
func (b Backend) Opened(rec storage.Record, at string) (storage.Pool, bool) {
	p, err := newPool(rec, at)
	return p, err == nil
}

// Open mounts the pool.
func (b Backend) Open(_ context.Context, rec storage.Record, at string) (storage.Pool, error) {
	if err := mount(rec, at); err != nil {
		return nil, err
	}
	p, err := newPool(rec, at)
	if err != nil {
		return nil, errors.Join(err, unmount(at))
	}
	return p, nil
}

// newPool returns the pool that is mounted at "at", or an error when another
// file system is.
func newPool(rec storage.Record, at string) (storage.Pool, error) {
	root, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	uuid, _, err := fsid(root)
	if err != nil {
		return nil, fmt.Errorf("%s: no btrfs is mounted: %w", at, err)
	}
	if uuid != rec.UUID {
		return nil, fmt.Errorf("%s: file system %s is mounted and not the pool's, %s", at, uuid, rec.UUID)
	}
	info := rec.Info()
	info.State, info.Path = storage.Ready, at
	info.Can = storage.Abilities{
		Clone: true, Immutable: true, Checksums: true, Reflink: true, Quota: hasSimpleQuota(root),
	}
	if rec.File != "" {
		if devices := memberDevices(uuid); len(devices) == 1 {
			info.DirectIO = directIO(devices[0])
		}
	}
	return &Pool{info: info}, nil
}

func mount(rec storage.Record, at string) error {
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	source := ""
	if rec.File != "" {
		dev, err := attach(rec.File)
		if err != nil {
			return err
		}
		defer dev.Close() // the mount keeps the loop device
		source = dev.Name()
	} else {
		source = rec.Devices[0]
	}
	err := unix.Mount(source, at, "btrfs", unix.MS_NOATIME, strings.Join(mountOptions(rec), ","))
	if errors.Is(err, unix.ENODEV) {
		return errdefs.New(errdefs.NotSupported, "mount "+source, "this kernel has no btrfs").
			WithHint("modprobe btrfs, or use --backend dir")
	}
	if err != nil {
		return errdefs.Wrap(errdefs.Failed, "mount "+source, err).WithHint("dmesg tells why")
	}
	return nil
}

// Close unmounts the pool. The kernel frees its loop device.
func (b Backend) Close(_ context.Context, _ storage.Record, at string) error { return unmount(at) }

// InUse reports a file system that another mount namespace holds.
func (b Backend) InUse(_ context.Context, rec storage.Record) error {
	return waitUnused(rec.Name, rec.UUID)
}

// Remove deletes the file, or wipes the devices so that they are free for
// others.
func (b Backend) Remove(_ context.Context, rec storage.Record) error {
	for _, d := range rec.Devices {
		if err := wipe(d, rec.UUID); err != nil {
			return fmt.Errorf("wipe %s: %w", d, err)
		}
	}
	if rec.File == "" {
		return nil
	}
	if err := os.Remove(rec.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// wipe overwrites the copies of the superblock that carry the pool's UUID; a
// device that was given to something else since is left alone.
func wipe(device, uuid string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	id := strings.ReplaceAll(uuid, "-", "")
	for _, at := range []int64{64 << 10, 64 << 20, 256 << 30} {
		block := make([]byte, 4096)
		if n, _ := f.ReadAt(block, at); n < len(block) {
			break
		}
		if fmt.Sprintf("%x", block[0x20:0x30]) != id || !bytes.Equal(block[0x40:0x48], []byte("_BHRfS_M")) {
			continue
		}
		if _, err := f.WriteAt(make([]byte, 4096), at); err != nil {
			return err
		}
	}
	return f.Sync()
}
