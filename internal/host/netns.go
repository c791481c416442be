package host

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewNetworkNamespace returns an open descriptor of a new network namespace,
// which lives as long as something has it open or runs in it. Other programs
// find it at OpenPath.
func NewNetworkNamespace() (*os.File, error) {
	var ns *os.File
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		ns = f
		return err
	})
	return ns, err
}

// OpenPath is where other processes find a file that this one has open.
func OpenPath(f *os.File) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
}
