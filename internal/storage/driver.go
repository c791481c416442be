package storage

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// Explain is for drivers: it puts the operation and the dataset in front of an
// error, and names the pool that is full. A nil error stays nil.
func Explain(pool, op, dataset string, err error) error {
	if err == nil {
		return nil
	}
	what := strings.TrimSpace(op + " " + dataset)
	if host.NoSpace(err) {
		e := &errdefs.Error{Kind: errdefs.Failed, What: what, Why: "pool " + pool + " is full", Err: err}
		return e.WithHint("zone pool status %s", pool)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// SpaceAt is for drivers: the size of the file system at path.
func SpaceAt(pool, path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, fmt.Errorf("space of pool %s: %w", pool, err)
	}
	size, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	return Space{Size: size, Used: size - int64(st.Bfree)*st.Bsize, Free: free}, nil
}
