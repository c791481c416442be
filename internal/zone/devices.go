package zone

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/runtime"
)

// hostDevices are character devices that reach the host's memory, kernel or
// storage, by major and minor number.
var hostDevices = map[[2]uint32]string{
	{1, 1}: "the host's memory", {1, 2}: "the kernel's memory", {1, 4}: "the host's ports", {1, 11}: "the kernel's log",
	{5, 1}: "the host's console", {5, 2}: "the host's terminals; the zone has its own",
	{10, 130}: "the host's watchdog", {10, 144}: "the host's firmware settings", {10, 223}: "the host's keyboards and mice",
	{10, 231}: "the host's suspended memory", {10, 234}: "btrfs of the host", {10, 235}: "automounts of the host",
	{10, 236}: "block devices of the host", {10, 237}: "loop devices of the host",
}

// hostMajors are those of which no device is given.
var hostMajors = map[uint32]string{21: "a disk of the host, unfiltered", 136: "a terminal of the host", 202: "the host's processor"}

// diskPaths begin the names of further character devices that take commands
// to disks. Their numbers differ from host to host.
var diskPaths = []string{"/dev/nvme", "/dev/ng", "/dev/bsg/"}

// findDevices looks up the device entries of a zone on this host. A path must
// be there; a pattern may match nothing. What would let the zone out is
// refused.
func findDevices(name string, entries []config.Device) ([]runtime.Device, error) {
	var list []runtime.Device
	for _, e := range entries {
		paths, err := filepath.Glob(e.Match)
		if err != nil {
			return nil, err
		}
		exact := !strings.ContainsAny(e.Match, `*?[\`)
		if exact && len(paths) == 0 {
			return nil, refusedDevice(name, e, e.Match, "does not exist on the host")
		}
		for _, p := range paths {
			d, isDevice, err := deviceAt(p)
			switch {
			case err != nil:
				return nil, refusedDevice(name, e, p, err.Error())
			case !isDevice && exact:
				return nil, refusedDevice(name, e, p, "is no device, or a link to one")
			case !isDevice:
				continue // a directory or link that the pattern matches, too
			}
			if !slices.ContainsFunc(list, func(o runtime.Device) bool { return o.Path == d.Path }) {
				list = append(list, d)
			}
		}
	}
	return list, nil
}

func refusedDevice(name string, e config.Device, path, why string) error {
	return errdefs.New(errdefs.NotSupported, "device of "+name, "%s %s", path, why).
		WithHint("zone config remove %s device match=%s", name, e.Match)
}

// deviceAt describes the device at a path of the host; an error says why no
// zone may have it.
func deviceAt(path string) (d runtime.Device, isDevice bool, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return d, false, fmt.Errorf("cannot be looked at: %w", err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return d, false, nil
	}
	major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
	d = runtime.Device{
		Path: path, Block: kind == unix.S_IFBLK, Major: int64(major), Minor: int64(minor),
		Mode: os.FileMode(st.Mode & 0o777), UID: st.Uid, GID: st.Gid,
	}
	if d.Block {
		return d, true, unused(path)
	}
	if what := hostDevices[[2]uint32{major, minor}]; what != "" {
		return d, true, fmt.Errorf("is %s", what)
	}
	if what := hostMajors[major]; what != "" {
		return d, true, fmt.Errorf("is %s", what)
	}
	for _, p := range diskPaths {
		if strings.HasPrefix(path, p) {
			return d, true, fmt.Errorf("takes commands to the host's disks")
		}
	}
	return d, true, nil
}

// unused refuses a block device that the host has mounted or put to other use:
// the kernel tells by refusing to open it for one user alone.
func unused(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == unix.EBUSY {
		return fmt.Errorf("is in use by the host")
	}
	if err != nil {
		return fmt.Errorf("cannot be opened: %w", err)
	}
	return unix.Close(fd)
}

// missingDevices looks for the devices of a zone in the root of its first
// process.
func missingDevices(name string, pid int, entries []config.Device) ([]string, error) {
	list, err := findDevices(name, entries)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	root, err := unix.Open(procRoot(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	var bad []string
	for _, d := range list {
		var st unix.Stat_t
		fd, err := unix.Openat2(root, d.Path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		if err == nil {
			err = unix.Fstat(fd, &st)
			closeFd(fd)
		}
		if err != nil || st.Rdev != unix.Mkdev(uint32(d.Major), uint32(d.Minor)) {
			bad = append(bad, "device: no "+d.Path)
		}
	}
	return bad, nil
}
