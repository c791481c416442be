package btrfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

// unmountWait is how long a mount may take to get free: the kernel ends
// processes and mount namespaces in the background.
const unmountWait = 2 * time.Second

// unmount unmounts a directory; one that is no mount point is success.
func unmount(at string) error {
	err := retry(func() error { return unix.Unmount(at, unix.UMOUNT_NOFOLLOW) }, unix.EBUSY)
	switch {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errdefs.New(errdefs.Busy, "unmount "+at, "in use%s", byProcesses(openers(at)))
	}
	return fmt.Errorf("unmount %s: %w", at, err)
}

// waitUnused returns errdefs.Busy when the file system stays mounted in some
// other mount namespace.
func waitUnused(name, uuid string) error {
	err := retry(func() error {
		if memberDevices(uuid) != nil {
			return unix.EBUSY
		}
		return nil
	}, unix.EBUSY)
	if err == nil {
		return nil
	}
	return errdefs.New(errdefs.Busy, "pool "+name, "still mounted elsewhere%s", byProcesses(mounters(memberDevices(uuid))))
}

func retry(f func() error, on error) error {
	deadline := time.Now().Add(unmountWait)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if !errors.Is(err, on) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// openers returns the processes that have a file, a working directory or
// their root below a directory.
func openers(dir string) []string {
	return processes(func(proc string) bool {
		links, _ := filepath.Glob(filepath.Join(proc, "fd", "*"))
		for _, l := range append(links, filepath.Join(proc, "cwd"), filepath.Join(proc, "root")) {
			to, err := os.Readlink(l)
			if err == nil && (to == dir || strings.HasPrefix(to, dir+"/")) {
				return true
			}
		}
		return false
	})
}

// mounters returns one process for each mount namespace in which a device is
// mounted.
func mounters(devices []string) []string {
	seen := map[string]bool{}
	return processes(func(proc string) bool {
		ns, err := os.Readlink(filepath.Join(proc, "ns", "mnt"))
		if err != nil || seen[ns] {
			return false
		}
		seen[ns] = true
		f, err := os.Open(filepath.Join(proc, "mountinfo"))
		if err != nil {
			return false
		}
		defer f.Close()
		mounts, err := mountinfo.GetMountsFromReader(f, func(i *mountinfo.Info) (skip, stop bool) {
			return i.FSType != "btrfs" || !slices.Contains(devices, filepath.Base(i.Source)), false
		})
		return err == nil && len(mounts) > 0
	})
}

// processes returns those of which a test on their directory in /proc holds.
func processes(is func(proc string) bool) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []string
	for _, d := range dirs {
		if is(d) {
			pids = append(pids, filepath.Base(d))
		}
	}
	return pids
}

// byProcesses says who they are: " by 12 (bash), 13 (sleep)".
func byProcesses(pids []string) string {
	if len(pids) == 0 {
		return ""
	}
	more := ""
	if len(pids) > 5 {
		pids, more = pids[:5], ", …"
	}
	said := make([]string, len(pids))
	for i, pid := range pids {
		comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		said[i] = fmt.Sprintf("%s (%s)", pid, strings.TrimSpace(string(comm)))
	}
	return " by process " + strings.Join(said, ", ") + more
}
