package zone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/runtime"
)

// kernelFS are file systems through which the kernel itself is reached.
var kernelFS = []string{
	"autofs", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "mqueue", "nsfs",
	"proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs",
}

// readOnlyTrees hold the host's own programs and settings: a zone that could
// write there would be root on the host.
var readOnlyTrees = []string{"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/root", "/sbin", "/usr"}

// readOnlyDirs are refused for writing themselves, but not what lies below.
var readOnlyDirs = []string{"/home", "/var", "/var/lib", "/var/spool", "/var/cache"}

// addFileSystems shows the zone the directories of its fs entries. It is
// called in the throw-away copy of the mounts, where each is bound to a place
// of its own by the descriptor that was checked: the path may lead elsewhere
// by the time the engine follows it.
func (s *Service) addFileSystems(name string, z config.Zone, c *runtime.Container) error {
	for i, f := range z.FS {
		fd, err := s.openSpecial(name, f)
		if err != nil {
			return err
		}
		target := filepath.Join(s.runDir(name), fmt.Sprintf("fs%d", i))
		err = os.MkdirAll(target, 0o700)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, "")
		}
		closeFd(fd)
		if err != nil {
			return fmt.Errorf("show %s: %w", f.Special, err)
		}
		c.Mounts = append(c.Mounts, runtime.Bind{
			Source: target, Destination: f.Dir, Writable: f.Options == config.FSReadWrite, Recursive: true,
		})
	}
	return nil
}

// openSpecial opens the directory of the host that an entry names, or refuses it.
func (s *Service) openSpecial(name string, f config.FS) (fd int, err error) {
	if why := s.refuseSpecial(f); why != "" {
		return -1, refusedFS(name, f, why)
	}
	fd, err = unix.Openat2(unix.AT_FDCWD, f.Special, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, refusedFS(name, f, whyNotOpen(err))
	}
	return fd, nil
}

func refusedFS(name string, f config.FS, why string) error {
	return errdefs.New(errdefs.NotSupported, "fs of "+name, "special %s %s", f.Special, why).
		WithHint("zone config remove %s fs dir=%s", name, f.Dir)
}

func whyNotOpen(err error) string {
	switch {
	case errors.Is(err, unix.ELOOP):
		return "is reached by a symbolic link, which could lead elsewhere at the next boot; name the directory that it leads to"
	case errors.Is(err, unix.ENOENT):
		return "does not exist on the host"
	case errors.Is(err, unix.ENOTDIR):
		return "is no directory"
	}
	return "cannot be opened: " + err.Error()
}

// refuseSpecial says why a zone may not see a directory of the host, or "".
func (s *Service) refuseSpecial(f config.FS) string {
	for _, own := range []string{s.Home, s.Run} {
		for _, dir := range []string{own, resolved(own)} {
			if within(f.Special, dir) || within(dir, f.Special) {
				return "holds zones, or lies where zones are kept (" + dir + ")"
			}
		}
	}
	if f.Options == config.FSReadWrite {
		if slices.Contains(readOnlyDirs, f.Special) || slices.ContainsFunc(readOnlyTrees, func(t string) bool { return within(f.Special, t) }) {
			return "belongs to the host's own system; allowed: options=ro"
		}
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !within(f.Special, m.Mountpoint) && !within(m.Mountpoint, f.Special), false
	})
	if err != nil {
		return "cannot be looked at: " + err.Error()
	}
	over := &mountinfo.Info{} // the mount that special itself is on: the longest, and of those the last
	for _, m := range mounts {
		if within(f.Special, m.Mountpoint) && len(m.Mountpoint) >= len(over.Mountpoint) {
			over = m
		}
		if m.Mountpoint != f.Special && within(m.Mountpoint, f.Special) && slices.Contains(kernelFS, m.FSType) {
			return fmt.Sprintf("has a file system of the kernel below it: %s on %s", m.FSType, m.Mountpoint)
		}
	}
	if slices.Contains(kernelFS, over.FSType) {
		return "is on a file system of the kernel: " + over.FSType
	}
	return ""
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func resolved(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	return path
}
