package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// copier copies one tree. It goes by open directories and never follows a
// link, so a source that changes under it cannot lead it elsewhere.
type copier struct {
	ctx        context.Context
	root       *os.File         // of the copy
	links      map[inode]string // first place, in the copy, of files with several names
	noReflink  bool             // the file system cannot clone files
	privileged bool
}

type inode struct{ dev, ino uint64 }

// copyTree copies what is in source, and source's own attributes, to the empty
// directory target. Sockets are left out; files that vanish are skipped.
func copyTree(ctx context.Context, source, target *os.File) error {
	c := &copier{ctx: ctx, root: target, links: map[inode]string{}, privileged: os.Geteuid() == 0}
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return err
	}
	return c.dir(source, target, ".", &st)
}

func (c *copier) dir(source, target *os.File, at string, st *unix.Stat_t) error {
	names, err := source.Readdirnames(-1)
	if err != nil && !vanished(err) {
		return err
	}
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.entry(source, target, name, path.Join(at, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return c.attributes(selfPath(source, "."), selfPath(target, "."), st)
}

func (c *copier) entry(source, target *os.File, name, at string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(source.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unlessVanished(err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK {
		return nil
	}
	if kind == unix.S_IFDIR {
		return c.subdir(source, target, name, at, &st)
	}
	id := inode{st.Dev, st.Ino}
	if first, ok := c.links[id]; ok {
		return unix.Linkat(int(c.root.Fd()), first, int(target.Fd()), name, 0)
	}
	made, err := c.node(source, target, name, &st)
	if err != nil || !made {
		return err
	}
	if st.Nlink > 1 {
		c.links[id] = at
	}
	return c.attributes(selfPath(source, name), selfPath(target, name), &st)
}

func (c *copier) subdir(source, target *os.File, name, at string, st *unix.Stat_t) error {
	from, err := openAt(source, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return unlessVanished(err)
	}
	defer from.Close()
	if err := unix.Mkdirat(int(target.Fd()), name, 0o700); err != nil {
		return err
	}
	to, err := openAt(target, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	return c.dir(from, to, at, st)
}

// node makes anything but a directory; it reports whether there was anything
// to make.
func (c *copier) node(source, target *os.File, name string, st *unix.Stat_t) (bool, error) {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(source, target, name)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(source.Fd()), name, buf)
		if err != nil {
			return false, unlessVanished(err)
		}
		return true, unix.Symlinkat(string(buf[:n]), int(target.Fd()), name)
	default:
		err := unix.Mknodat(int(target.Fd()), name, st.Mode, int(st.Rdev))
		if errors.Is(err, unix.EPERM) && !c.privileged {
			return false, nil
		}
		return err == nil, err
	}
}

func (c *copier) file(source, target *os.File, name string) (bool, error) {
	// Not blocking: the name may have become a FIFO since.
	from, err := openAt(source, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, unlessVanished(err)
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false, err
	}
	to, err := openAt(target, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return false, err
	}
	return true, errors.Join(c.content(from, to, st.Size()), to.Close())
}

func (c *copier) content(from, to *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if !c.noReflink {
		err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
		if err == nil || !cannotClone(err) {
			return err
		}
		c.noReflink = true
	}
	return copyData(from, to, size)
}

// copyData copies the parts of a file that are no holes.
func copyData(from, to *os.File, size int64) error {
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := from.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, min(end, size)-start); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		at = end
	}
	return to.Truncate(size)
}

// attributes copies owner, mode, extended attributes and times, in the order
// in which none of them undoes another.
func (c *copier) attributes(from, to string, st *unix.Stat_t) error {
	if c.privileged {
		if err := unix.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return &fs.PathError{Op: "chown", Path: to, Err: err}
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: to, Err: err}
		}
	}
	if err := c.xattrs(from, to); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW)
}

func (c *copier) xattrs(from, to string) error {
	list := make([]byte, 64<<10) // the kernel's limit for all names and for one value
	n, err := unix.Llistxattr(from, list)
	if n == 0 || errors.Is(err, unix.EOPNOTSUPP) || vanished(err) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "list attributes", Path: from, Err: err}
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		v, err := unix.Lgetxattr(from, name, value)
		if errors.Is(err, unix.ENODATA) || vanished(err) {
			continue
		}
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:v], 0)
		}
		if err != nil && (c.privileged || !errors.Is(err, fs.ErrPermission)) {
			return &fs.PathError{Op: "copy attribute " + name, Path: to, Err: err}
		}
	}
	return nil
}

// selfPath names an entry of an open directory; only its last part could be a
// link, and callers do not follow that.
func selfPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, mode)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

func cannotClone(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// vanished reports an error of a name that is gone or became something else
// since the directory was read.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO)
}

func unlessVanished(err error) error {
	if vanished(err) {
		return nil
	}
	return err
}
