package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// insideEnv names the mount namespace that this process was started in by
// EnterPrivateMounts: its inode number.
const insideEnv = "ZONE_MOUNT_NAMESPACE"

// EnterPrivateMounts puts the whole process into the mount namespace that
// belongs to runDir, making and pinning one at runDir/ns/mnt when there is
// none. Pools are mounted in there and nowhere else: no other program's copy
// of the host's mounts can keep them busy, the host's mount table stays short,
// and they outlive this process however it ends.
//
// Joining a namespace concerns one thread, so the program starts itself again
// from the joined thread; the call returns only in the new image, or on error.
// Mounts made later by the host are seen inside where the host's own mounts
// are shared, as systemd makes them.
func EnterPrivateMounts(runDir string) error {
	inside := os.Getenv(insideEnv)
	_ = os.Unsetenv(insideEnv)
	if inside != "" && inside == inodeOf("/proc/self/ns/mnt") {
		return nil
	}
	pin, err := pinnedMounts(runDir)
	if err != nil {
		return fmt.Errorf("private mount namespace: %w", err)
	}
	return restartIn(pin)
}

// ReleasePrivateMounts unpins the namespace of runDir. It ends, and with it
// whatever is still mounted there, when the last process in it ends. Call it
// when no pool is left.
func ReleasePrivateMounts(runDir string) error {
	dir := filepath.Join(runDir, "ns")
	err := inMountsWith(filepath.Join(dir, "mnt"), func() error {
		for _, p := range []string{filepath.Join(dir, "mnt"), dir} {
			if err := unmountAll(p); err != nil {
				return fmt.Errorf("unpin mount namespace %s: %w", p, err)
			}
		}
		return nil
	})
	if errors.Is(err, errNoNamespace) {
		return nil
	}
	return err
}

// unmountAll unmounts whatever is mounted at p, be it several times: calls that
// were killed while pinning leave mounts below the next one's.
func unmountAll(p string) error {
	for {
		switch err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		}
	}
}

// WithThrowawayMounts runs f on a thread of its own in a copy of the mount
// namespace. What f mounts is seen by f and by the programs it starts, and is
// gone when the last of them has ended: there is nothing to clean up.
func WithThrowawayMounts(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("make mounts slaves: %w", err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that is never used again, so that f may
// change what belongs to a thread.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread cannot be ended, and /proc/self shows its
			// namespaces: keep it busy while another thread does the work.
			done <- onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // still locked: the runtime ends the thread
	}()
	return <-done
}

// inMountsWith runs f in a mount namespace that has the given mount point: that
// of the host.
func inMountsWith(mount string, f func() error) error {
	return onOwnThread(func() error {
		fd, err := mountsWith(mount)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := joinMounts(fd); err != nil {
			return err
		}
		return f()
	})
}

// mountsWith opens the mount namespace of the first process or, where that is
// out of reach, as in some containers, of any process that sees the mount.
func mountsWith(mount string) (int, error) {
	fd, first := openMounts("/proc/1")
	if first == nil {
		return fd, nil
	}
	fd, err := findMounts(mount)
	if err != nil {
		return -1, fmt.Errorf("mount namespace of the host: %w; of others: %w", first, err)
	}
	return fd, nil
}

func openMounts(proc string) (int, error) {
	return unix.Open(filepath.Join(proc, "ns", "mnt"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// findMounts opens the mount namespace of a process that sees the mount. Copies
// of that namespace do not: the kernel leaves pinned mount namespaces out. When
// all processes could be asked and none sees it, it is errNoNamespace.
func findMounts(mount string) (int, error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return -1, err
	}
	if real, err := filepath.EvalSymlinks(mount); err == nil {
		mount = real // the kernel tells paths without links
	}
	point := " " + strings.NewReplacer("\\", `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(mount) + " "
	missed := errNoNamespace
	for _, proc := range procs {
		mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
		if err == nil && !strings.Contains(string(mounts), point) {
			continue
		}
		var fd int
		if err == nil {
			fd, err = openMounts(proc)
		}
		switch {
		case err == nil:
			return fd, nil
		case !processGone(err):
			missed = err
		}
	}
	return -1, missed
}

// processGone reports whether reading below /proc failed because the process
// has ended.
func processGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}

func joinMounts(fd int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare file system attributes: %w", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("join mount namespace: %w", err)
	}
	return nil
}

// pinnedMounts returns an open descriptor of runDir's namespace.
func pinnedMounts(runDir string) (*os.File, error) {
	dir := filepath.Join(runDir, "ns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := WaitLock(context.Background(), filepath.Join(runDir, "ns.lock"), 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()

	path := filepath.Join(dir, "mnt")
	f, err := openNamespace(path)
	if err == nil || !errors.Is(err, errNoNamespace) && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := unmountAll(dir); err != nil { // of a call that was killed halfway
		return nil, err
	}
	if err := makeNamespace(dir, path); err != nil {
		_ = unmountAll(dir)
		return nil, err
	}
	return openNamespace(path)
}

func openNamespace(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, errNoNamespace)
	}
	return f, nil
}

var errNoNamespace = errors.New("no namespace is pinned")

func makeNamespace(dir, path string) error {
	// A mount namespace can only be pinned on a mount that is not shared.
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", dir, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	made, pinned := make(chan int, 1), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		failed <- onOwnThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("unshare mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
				return fmt.Errorf("make mounts slaves: %w", err)
			}
			made <- unix.Gettid()
			<-pinned
			return nil
		})
	}()
	select {
	case err := <-failed:
		return err
	case tid := <-made:
		err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/mnt", tid), path, "", unix.MS_BIND, "")
		close(pinned)
		if err != nil {
			return fmt.Errorf("pin mount namespace at %s: %w", path, err)
		}
		return <-failed
	}
}

// restartIn starts this program again, same process, inside the namespace.
func restartIn(ns *os.File) error {
	cwd, cwdErr := os.Getwd()
	st, err := ns.Stat()
	if err != nil {
		return err
	}
	inode := fmt.Sprint(st.Sys().(*syscall.Stat_t).Ino)
	return onOwnThread(func() error {
		if err := joinMounts(int(ns.Fd())); err != nil {
			return err
		}
		if cwdErr == nil {
			_ = unix.Chdir(cwd) // not there inside: stay at "/"
		}
		env := append(os.Environ(), insideEnv+"="+inode)
		return fmt.Errorf("start %s again: %w", os.Args[0], syscall.Exec("/proc/self/exe", os.Args, env))
	})
}

func inodeOf(path string) string {
	link, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(link[strings.LastIndexByte(link, '[')+1:], "]")
}
