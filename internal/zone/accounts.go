package zone

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// maxAccounts is far above any real list of users.
const maxAccounts = 16 << 20

// checkAccounts refuses a root whose lists of users the engine could not read
// to an end: it opens them before it starts anything inside, and a named pipe
// in their place would hold it up for ever.
func checkAccounts(op string, root *host.Root) error {
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		f, err := root.Open(file, unix.O_PATH, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return errdefs.New(errdefs.Failed, op, "%s in the zone cannot be opened", file)
		}
		st, err := f.Stat()
		_ = f.Close()
		switch {
		case err != nil:
			return err
		case !st.Mode().IsRegular():
			return errdefs.New(errdefs.Failed, op, "%s in the zone is not a regular file", file).
				WithHint("halt the zone and roll it back; zone snapshots lists what there is")
		case st.Size() > maxAccounts:
			return errdefs.New(errdefs.Failed, op, "%s in the zone has %d bytes; at most %d are read", file, st.Size(), maxAccounts).
				WithHint("halt the zone and roll it back; zone snapshots lists what there is")
		}
	}
	return nil
}
