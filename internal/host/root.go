package host

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Root gives access to files below a directory whose content is hostile: the
// root of a zone or an image. Each path is resolved by the kernel as if that
// directory were "/" (openat2 with RESOLVE_IN_ROOT), so neither "..", nor an
// absolute or swapped symbolic link, nor a magic link of /proc leads out.
type Root struct {
	dir *os.File
}

// OpenRoot opens dir, which must be trusted itself, as a Root.
func OpenRoot(dir string) (*Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open root", Path: dir, Err: err}
	}
	return &Root{dir: os.NewFile(uintptr(fd), dir)}, nil
}

// Close releases the directory.
func (r *Root) Close() error { return r.dir.Close() }

// Name returns the path the root was opened with.
func (r *Root) Name() string { return r.dir.Name() }

// maxOpens bounds how often Open tries when it is disturbed.
const maxOpens = 1000

// Open opens a path inside the root with open(2) flags and, when it creates, a
// mode, from which the umask is taken.
func (r *Root) Open(name string, flags int, mode fs.FileMode) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_PATH == 0 { // openat2 refuses flags that have no effect
		how.Flags |= unix.O_NOCTTY
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode.Perm())
	}
	var fd int
	var err error
	// EAGAIN tells of a rename on the way, or of a lease on the file: whoever
	// is inside can go on with either for ever, and must not keep us with it.
	for again := 0; again < maxOpens; again++ {
		fd, err = unix.Openat2(int(r.dir.Fd()), name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			break
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path.Join(r.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(r.Name(), name)), nil
}

// ReadFile returns the content of a regular file, at most 16 MiB of it: a zone
// cannot make the host read without end. Anything else is not even opened: to
// open a device can be to set it off.
func (r *Root) ReadFile(name string) ([]byte, error) {
	place, err := r.Open(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	st, err := place.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: place.Name(), Err: errors.New("not a regular file")}
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: place.Name(), Err: err}
	}
	f := os.NewFile(uintptr(fd), place.Name())
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 16<<20))
}

// WriteFile replaces a file: the new content is written beside it and renamed
// over it, so a symbolic link at name is replaced and never followed.
func (r *Root) WriteFile(name string, data []byte, perm fs.FileMode) error {
	parent, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	// A name that nobody can have laid something under.
	tmp := ".zone-" + rand.Text()
	err = createIn(parent, tmp, data, perm)
	if err == nil {
		err = unix.Renameat(int(parent.Fd()), tmp, int(parent.Fd()), base)
	}
	if err != nil {
		_ = unix.Unlinkat(int(parent.Fd()), tmp, 0)
		return &fs.PathError{Op: "write", Path: path.Join(r.Name(), name), Err: err}
	}
	return nil
}

// ReplaceFile removes what is at name and makes a new file there: for a root
// that nobody uses yet. In a copy-on-write file system it costs fewer blocks
// than WriteFile, whose temporary names fall anywhere in the directory.
func (r *Root) ReplaceFile(name string, data []byte, perm fs.FileMode) error {
	if err := r.Remove(name); err != nil {
		return err
	}
	parent, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := createIn(parent, base, data, perm); err != nil {
		return &fs.PathError{Op: "write", Path: path.Join(r.Name(), name), Err: err}
	}
	return nil
}

// createIn makes a new file: one that is there could be a pipe that blocks, or
// open in other hands.
func createIn(parent *os.File, name string, data []byte, perm fs.FileMode) error {
	fd, err := unix.Openat(int(parent.Fd()), name,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(perm), f.Close())
}

// MkdirAll makes a directory and its missing parents.
func (r *Root) MkdirAll(name string, perm fs.FileMode) error {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil
	}
	if f, err := r.Open(name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		return f.Close()
	}
	if err := r.MkdirAll(path.Dir(name), perm); err != nil {
		return err
	}
	parent, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), base, uint32(perm.Perm()))
	if err == unix.EEXIST { // made meanwhile, or no directory
		f, err := r.Open(name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path.Join(r.Name(), name), Err: err}
	}
	return nil
}

// Remove removes a file or an empty directory; the last component is never
// followed. A missing path is success.
func (r *Root) Remove(name string) error {
	parent, base, err := r.parent(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Unlinkat(int(parent.Fd()), base, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(int(parent.Fd()), base, unix.AT_REMOVEDIR)
	}
	if err != nil && err != unix.ENOENT {
		return &fs.PathError{Op: "remove", Path: path.Join(r.Name(), name), Err: err}
	}
	return nil
}

// ReadDir lists a directory, sorted by name. A missing directory is an empty
// list.
func (r *Root) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := r.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// Exists reports whether the path leads to something inside the root.
func (r *Root) Exists(name string) bool {
	f, err := r.Open(name, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

func (r *Root) parent(name string) (*os.File, string, error) {
	name = path.Clean("/" + name)
	dir, base := path.Split(name)
	if base == "" || base == "/" {
		return nil, "", &fs.PathError{Op: "open", Path: filepath.Join(r.Name(), name), Err: unix.EINVAL}
	}
	f, err := r.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return f, base, err
}

// Whiteout puts an overlay whiteout at name: a device 0:0 that hides the file
// of that name in the layers below.
func (r *Root) Whiteout(name string) error {
	parent, base, err := r.parent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Mknodat(int(parent.Fd()), base, unix.S_IFCHR, 0); err != nil {
		return &fs.PathError{Op: "whiteout", Path: path.Join(r.Name(), name), Err: err}
	}
	return nil
}
