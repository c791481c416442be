package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"zone/internal/host"
)

// tryBPF makes the smallest possible map and drops it.
func tryBPF() error {
	const mapCreate, arrayMap = 0, 2
	attr := struct{ kind, key, value, entries, flags uint32 }{arrayMap, 4, 4, 1, 0}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, mapCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(&attr)
	if errno != 0 {
		return fmt.Errorf("bpf: %w", errno)
	}
	return unix.Close(int(fd))
}

func tryKVM(_ context.Context, o Options) (Status, string) {
	const getAPIVersion, stable = 0xAE00, 12
	f, err := os.OpenFile(filepath.Join(o.Root, "dev/kvm"), os.O_RDWR, 0)
	if err != nil {
		return Missing, err.Error()
	}
	defer f.Close()
	v, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), getAPIVersion, 0)
	if errno != 0 {
		return Missing, "/dev/kvm is no KVM: " + errno.Error()
	}
	return present(v == stable, fmt.Sprintf("API version %d", v))
}

// tryLinks makes a veth pair on a bridge in a network namespace that ends with
// the thread.
func tryLinks(context.Context, Options) (Status, string) {
	return tried(host.WithThrowawayMounts(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network: %w", err)
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := h.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("add veth: %w", err)
		}
		return h.LinkSetMaster(veth, bridge)
	}), "")
}

// tryIDMap maps user ids on mounts that are attached nowhere: a tmpfs, and a
// copy of the mount that holds zone's state.
func tryIDMap(_ context.Context, o Options) (Status, string) {
	userns, err := newUserNamespace(o)
	if err != nil {
		return Missing, err.Error()
	}
	defer userns.Close()
	var works []string
	tmpfs, err := detachedTmpfs()
	if err = errors.Join(err, idMap(tmpfs, userns)); err == nil {
		works = append(works, "tmpfs")
	}
	if dir := existing(o.Dir); dir != "" {
		fd, dirErr := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if dirErr = errors.Join(dirErr, idMap(fd, userns)); dirErr == nil {
			works = append(works, "the file system of "+dir)
		}
	}
	if len(works) == 0 {
		return tried(err, "")
	}
	return Present, "on " + strings.Join(works, " and ")
}

func detachedTmpfs() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open tmpfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make tmpfs: %w", err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

// idMap maps ids on the detached mount and closes it.
func idMap(mount int, userns *os.File) error {
	if mount < 0 {
		return nil
	}
	defer unix.Close(mount)
	err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd()),
	})
	if err != nil {
		return fmt.Errorf("map ids of a mount: %w", err)
	}
	return nil
}

// newUserNamespace returns a user namespace with its own range of ids. Only a
// new process can make one: it waits in it until we hold it.
func newUserNamespace(o Options) (*os.File, error) {
	cat, err := o.Look("cat")
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	p, err := os.StartProcess(cat, []string{"cat"}, &os.ProcAttr{
		Files: []*os.File{r},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("new user namespace: %w", err), w.Close())
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	_ = w.Close() // cat ends
	_, waitErr := p.Wait()
	return ns, errors.Join(err, waitErr)
}

// existing returns dir or its nearest parent that is there.
func existing(dir string) string {
	for dir != "" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
	return ""
}
