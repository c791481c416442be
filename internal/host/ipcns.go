package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// WithIPCNamespace runs f on a thread in the IPC namespace of a process, where
// /proc/sys shows the settings of that namespace. f must not leave its thread.
func WithIPCNamespace(pid int, f func() error) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/ipc", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the IPC namespace of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	return onOwnThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWIPC); err != nil {
			return fmt.Errorf("enter the IPC namespace of process %d: %w", pid, err)
		}
		return f()
	})
}
