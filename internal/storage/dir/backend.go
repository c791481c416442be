package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// Backend makes and opens directory pools. They are used where they are,
// without a mount.
type Backend struct{}

var _ storage.Backend = Backend{}

// New returns the backend.
func New() Backend { return Backend{} }

// Plan checks a specification and fills in the path.
func (Backend) Plan(spec storage.Spec, dir string) (storage.Record, error) {
	what := "create pool " + spec.Name
	rec := storage.Record{Path: spec.Path, Compression: "off"}
	if rec.Path == "" {
		rec.Path = filepath.Join(dir, spec.Name+".d")
	}
	switch {
	case len(spec.Devices) > 0:
		return rec, errdefs.New(errdefs.Usage, what, "a pool in a directory takes no devices")
	case spec.Mirror:
		return rec, errdefs.New(errdefs.Usage, what, "a pool in a directory cannot be a mirror").WithHint("use --backend btrfs")
	case spec.Size != 0:
		return rec, errdefs.New(errdefs.Usage, what, "a pool in a directory has no size of its own")
	case spec.Compression != "" && spec.Compression != "off":
		return rec, errdefs.New(errdefs.Usage, what, "a pool in a directory cannot compress; allowed: off").WithHint("use --backend btrfs")
	case !filepath.IsAbs(rec.Path):
		return rec, errdefs.New(errdefs.Usage, what, "%s: give the absolute path", rec.Path)
	}
	return rec, checkFree(what, &rec)
}

// checkFree allows a path that is missing or an empty directory.
func checkFree(what string, rec *storage.Record) error {
	entries, err := os.ReadDir(rec.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		rec.MadePath = true
		return nil
	case err != nil:
		return errdefs.Wrap(errdefs.Usage, what, err)
	case len(entries) > 0:
		return errdefs.New(errdefs.WrongState, what, "%s is not empty", rec.Path)
	}
	return nil
}

// Make makes the directory and its header.
func (Backend) Make(_ context.Context, rec storage.Record, _ string) (storage.Pool, error) {
	if rec.MadePath {
		if err := os.MkdirAll(filepath.Dir(rec.Path), 0o700); err != nil {
			return nil, err
		}
		if err := os.Mkdir(rec.Path, 0o700); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{workDir, trashDir} {
		if err := os.Mkdir(filepath.Join(rec.Path, d), 0o700); err != nil {
			return nil, err
		}
	}
	can, err := probe(filepath.Join(rec.Path, workDir))
	if err != nil {
		return nil, err
	}
	if err := host.WriteJSON(filepath.Join(rec.Path, storage.HeaderName), header{rec.Header(), can}, true); err != nil {
		return nil, err
	}
	return open(rec)
}

// header is the pool's header with what was found by trying.
type header struct {
	storage.Header
	Can storage.Abilities `json:"can"`
}

// probe tries what the file system can do.
func probe(dir string) (storage.Abilities, error) {
	var can storage.Abilities
	if err := unix.Setxattr(dir, markName, []byte("1"), 0); err != nil {
		return can, errdefs.New(errdefs.NotSupported, "use "+dir, "its file system has no user attributes: %v", err).
			WithHint("use a directory on ext4, xfs or btrfs")
	}
	if err := unix.Removexattr(dir, markName); err != nil {
		return can, err
	}
	from, err := os.CreateTemp(dir, "probe")
	if err != nil {
		return can, err
	}
	defer os.Remove(from.Name())
	defer from.Close()
	to, err := os.CreateTemp(dir, "probe")
	if err != nil {
		return can, err
	}
	defer os.Remove(to.Name())
	defer to.Close()
	if _, err := from.Write(make([]byte, 4096)); err != nil {
		return can, err
	}
	can.Reflink = unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
	return can, nil
}

// Opened returns the pool when the directory carries its header.
func (Backend) Opened(rec storage.Record, _ string) (storage.Pool, bool) {
	p, err := open(rec)
	return p, err == nil
}

// Open returns the pool.
func (Backend) Open(_ context.Context, rec storage.Record, _ string) (storage.Pool, error) {
	return open(rec)
}

func open(rec storage.Record) (*Pool, error) {
	var h header
	if err := host.ReadJSON(filepath.Join(rec.Path, storage.HeaderName), &h); err != nil {
		return nil, err
	}
	if h.UUID != rec.UUID {
		return nil, fmt.Errorf("%s: holds pool %s and not the expected %s", rec.Path, h.UUID, rec.UUID)
	}
	info := rec.Info()
	info.State, info.Can = storage.Ready, h.Can
	if err := sweep(rec.Path); err != nil {
		return nil, err
	}
	return &Pool{info: info}, nil
}

// youngest is the age below which sweep leaves work alone: its maker may not
// have locked it yet.
const youngest = time.Minute

// sweep removes what killed processes left: datasets half made or half
// deleted, whose locks are free.
func sweep(root string) error {
	for _, dir := range []string{workDir, trashDir} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if dir == workDir && (err != nil || time.Since(info.ModTime()) < youngest) {
				continue
			}
			if err := removeUnlocked(filepath.Join(root, dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeUnlocked(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // somebody is at work on it
	}
	return os.RemoveAll(path)
}

// Close does nothing: there is no mount.
func (Backend) Close(context.Context, storage.Record, string) error { return nil }

// InUse does not know who uses a directory.
func (Backend) InUse(context.Context, storage.Record) error { return nil }

// Remove deletes the content, and the directory if it was made for the pool.
func (Backend) Remove(_ context.Context, rec storage.Record) error {
	if rec.MadePath {
		return os.RemoveAll(rec.Path)
	}
	entries, err := os.ReadDir(rec.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(rec.Path, e.Name())))
	}
	return err
}
