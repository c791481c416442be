package btrfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

// attach returns an open loop device on the file: the one there is, or a new
// one with direct I/O, so that the file's pages are not cached beside those of
// the file system in it. The kernel frees the device when its last user, a
// descriptor or a mount, is gone.
func attach(file string) (*os.File, error) {
	if dev, err := existingLoop(file); dev != nil || err != nil {
		return dev, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.New(errdefs.NotSupported, "attach "+file, "this kernel has no loop devices").
			WithHint("modprobe loop, or give the pool a block device")
	}
	if err != nil {
		return nil, err
	}
	defer control.Close()
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	for range 100 {
		dev, err := attachFree(control, backing)
		if !errors.Is(err, unix.EBUSY) { // somebody was faster: try the next
			return dev, err
		}
	}
	return nil, errdefs.New(errdefs.Busy, "attach "+file, "no loop device stays free long enough to be taken")
}

func attachFree(control, backing *os.File) (*os.File, error) {
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("get free loop device: %w", err)
	}
	dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Size: 4096}
	config.Info.Flags = unix.LO_FLAGS_DIRECT_IO | unix.LO_FLAGS_AUTOCLEAR
	copy(config.Info.File_name[:len(config.Info.File_name)-1], backing.Name())
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		_ = dev.Close()
		return nil, fmt.Errorf("configure %s: %w", dev.Name(), err)
	}
	return dev, nil
}

// existingLoop returns the open loop device on the file, or nil.
func existingLoop(file string) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Stat(file, &want); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	used, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, f := range used {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "/sys/block/"), "/")
		dev, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == want.Ino && info.Device == want.Dev {
			return dev, nil
		}
		_ = dev.Close()
	}
	return nil, nil
}

// memberDevices returns the names in /dev of the devices of a file system that
// is mounted in any namespace, and nil when it is mounted in none.
func memberDevices(uuid string) []string {
	entries, err := os.ReadDir(filepath.Join("/sys/fs/btrfs", uuid, "devices"))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// directIO reports whether a loop device bypasses the page cache of its file.
func directIO(name string) bool {
	b, err := os.ReadFile("/sys/block/" + name + "/loop/dio")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}
