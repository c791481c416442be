package btrfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/storage"
)

const (
	mib         = int64(1) << 20
	minSize     = 256 * mib
	defaultSize = 50 << 10 * mib
)

// Plan checks a specification and fills in the file and its size.
func (b Backend) Plan(spec storage.Spec, dir string) (storage.Record, error) {
	what := "create pool " + spec.Name
	rec := storage.Record{
		Devices: spec.Devices, Mirror: spec.Mirror, Compression: spec.Compression,
		NoQuota: spec.NoQuota, Force: spec.Force,
	}
	if rec.Compression == "" {
		rec.Compression = "off"
	}
	if _, ok := mountCompression[rec.Compression]; !ok {
		return rec, errdefs.New(errdefs.Usage, what, "btrfs has no compression %q; allowed: off, zstd, gzip", spec.Compression)
	}
	switch {
	case spec.Path != "":
		return rec, errdefs.New(errdefs.Usage, what, "a path is only for pools with the dir backend")
	case spec.Mirror && len(spec.Devices) < 2:
		return rec, errdefs.New(errdefs.Usage, what, "a mirror needs two devices or more, not %d", len(spec.Devices))
	case len(spec.Devices) > 0 && spec.Size != 0:
		return rec, errdefs.New(errdefs.Usage, what, "devices are used whole; a size is only for a pool on a file")
	case len(spec.Devices) > 0:
		return rec, checkDevices(what, spec.Devices)
	}
	rec.File = filepath.Join(dir, spec.Name+".img")
	if _, err := os.Lstat(rec.File); err == nil {
		return rec, errdefs.New(errdefs.WrongState, what, "%s exists and belongs to no pool", rec.File).
			WithHint("move the file away")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return rec, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	var err error
	rec.Size, err = fileSize(what, spec.Size, int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize)
	return rec, err
}

// fileSize returns the size of the sparse file on a file system with the given
// total and free bytes.
func fileSize(what string, asked, total, free int64) (int64, error) {
	size := asked
	if size == 0 {
		size = min(defaultSize, free/10*8)
	}
	size -= size % mib
	switch {
	case size < minSize && asked == 0:
		return 0, errdefs.New(errdefs.Failed, what, "only %d MiB are free for it, and the smallest pool is %d MiB",
			free/mib, minSize/mib).WithHint("make room, or give the pool a block device")
	case size < minSize:
		return 0, errdefs.New(errdefs.Usage, what, "a size of %d MiB is too small; the smallest is %d MiB", size/mib, minSize/mib)
	case size > total:
		return 0, errdefs.New(errdefs.Usage, what, "a size of %d MiB is more than the %d MiB of the file system it is on",
			size/mib, total/mib)
	}
	return size, nil
}

func checkDevices(what string, devices []string) error {
	for i, d := range devices {
		st, err := os.Stat(d)
		if err != nil {
			return &errdefs.Error{Kind: errdefs.Usage, What: what, Err: err}
		}
		if st.Mode()&fs.ModeDevice == 0 || st.Mode()&fs.ModeCharDevice != 0 {
			return errdefs.New(errdefs.Usage, what, "%s is no block device", d)
		}
		if !filepath.IsAbs(d) {
			return errdefs.New(errdefs.Usage, what, "device %s: give the absolute path", d)
		}
		if slices.Contains(devices[:i], d) {
			return errdefs.New(errdefs.Usage, what, "device %s is given twice", d)
		}
	}
	return nil
}

// mkfsArgs returns the arguments of mkfs.btrfs.
func mkfsArgs(rec storage.Record) []string {
	data, metadata := "single", "dup"
	switch {
	case rec.Mirror:
		data, metadata = "raid1", "raid1"
	case len(rec.Devices) > 1:
		metadata = "raid1" // costs little and keeps the tree when a device is lost
	}
	args := []string{"--quiet", "--uuid", rec.UUID, "--data", data, "--metadata", metadata}
	if rec.Force {
		args = append(args, "--force")
	}
	if rec.File != "" {
		return append(args, "--nodiscard", rec.File)
	}
	return append(args, rec.Devices...)
}

// mountCompression maps the names of compression to mount options.
var mountCompression = map[string]string{"off": "", "zstd": "compress=zstd:1", "gzip": "compress=zlib"}

// mountOptions returns the options of the mount, besides its flags.
func mountOptions(rec storage.Record) []string {
	var opts []string
	if rec.File != "" {
		opts = append(opts, "discard=async") // what is deleted leaves the sparse file
	}
	if c := mountCompression[rec.Compression]; c != "" {
		opts = append(opts, c)
	}
	for _, d := range rec.Devices {
		opts = append(opts, fmt.Sprintf("device=%s", d))
	}
	return opts
}
