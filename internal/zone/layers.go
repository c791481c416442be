package zone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// maxLayers is how many layers a zone may stand on; each costs a little on
// every look-up of a file.
const maxLayers = 32

// maxMountOptions is what fits the one page that mount(2) takes.
const maxMountOptions = 4095

// mountOptions returns the options of a sparse root's overlay, whose own
// dataset is at dir.
func mountOptions(pool storage.Pool, dir string, r Record) string {
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`)
	lowers := lowerDirs(pool, r)
	for i, l := range lowers {
		lowers[i] = escape.Replace(l)
	}
	return "lowerdir=" + strings.Join(lowers, ":") +
		",upperdir=" + escape.Replace(filepath.Join(dir, "upper")) + ",workdir=" + escape.Replace(filepath.Join(dir, "work"))
}

// checkLayers refuses clones of a sparse zone that would stand on more layers
// than one mount takes. name is the longest of their names.
func checkLayers(at Place, r Record, name string) error {
	if r.Root != Sparse {
		return nil
	}
	clone := r
	clone.Layers = append([]string{newID()}, r.Layers...)
	dir := Place{at.Pool, name}.activePath("")
	if len(r.Layers) < maxLayers && len(mountOptions(at.Pool, dir, clone)) <= maxMountOptions {
		return nil
	}
	return errdefs.New(errdefs.WrongState, "clone "+at.Name, "it stands on %d layers, the most that one mount takes", len(r.Layers)).
		WithHint("zone image build NAME --from zone:%s", at.Name)
}

// lowerDirs returns the directories below a sparse zone's own, topmost first.
func lowerDirs(pool storage.Pool, r Record) []string {
	dirs := make([]string, 0, len(r.Layers)+1)
	for _, l := range r.Layers {
		dirs = append(dirs, filepath.Join(pool.Path(path.Join("layers", l)), "upper"))
	}
	return append(dirs, filepath.Join(pool.Path(path.Join("images", r.Image)), "root"))
}

// mountRoot mounts a zone's root at target, which it makes. It is called
// inside host.WithThrowawayMounts only, so the mount lives as long as the
// zone's processes.
func mountRoot(at Place, r Record, target string) error {
	return mountRootOf(at.Pool, at.activePath(""), r, target)
}

// mountRootOf mounts the root kept in the dataset at dir.
func mountRootOf(pool storage.Pool, dir string, r Record, target string) error {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return err
	}
	if r.Root == Whole {
		if err := unix.Mount(filepath.Join(dir, "root"), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount root: %w", err)
		}
		err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|unix.MS_NOATIME, "")
		if err != nil {
			return fmt.Errorf("mount root nodev: %w", err)
		}
		return nil
	}
	for _, d := range lowerDirs(pool, r) {
		if _, err := os.Stat(d); err != nil {
			return errdefs.New(errdefs.Failed, "mount root", "a layer of it is missing: %s", d)
		}
	}
	options := mountOptions(pool, dir, r)
	if err := unix.Mount("zone", target, "overlay", unix.MS_NODEV|unix.MS_NOATIME, options); err != nil {
		return fmt.Errorf("mount root (overlay): %w", err)
	}
	return nil
}

// writable edits the files of a root that is not mounted: a whole root itself,
// or the upper directory of a sparse one with the layers below it in view.
type writable struct {
	top    *host.Root
	lowers []*host.Root // nil for a whole root
}

func openWritable(pool storage.Pool, dir string, r Record) (*writable, error) {
	if r.Root == Whole {
		top, err := host.OpenRoot(filepath.Join(dir, "root"))
		return &writable{top: top}, err
	}
	top, err := host.OpenRoot(filepath.Join(dir, "upper"))
	if err != nil {
		return nil, err
	}
	w := &writable{top: top}
	for _, d := range lowerDirs(pool, r) {
		l, err := host.OpenRoot(d)
		if err != nil {
			w.close()
			return nil, err
		}
		w.lowers = append(w.lowers, l)
	}
	return w, nil
}

func (w *writable) close() {
	_ = w.top.Close()
	for _, l := range w.lowers {
		_ = l.Close()
	}
}

func (w *writable) roots() []*host.Root {
	return append([]*host.Root{w.top}, w.lowers...)
}

// readFile returns the file as the mounted root would show it.
func (w *writable) readFile(name string) ([]byte, error) {
	for _, r := range w.roots() {
		data, err := r.ReadFile(name)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fs.ErrNotExist
}

// writeFile writes a file, making its directories as they are below.
func (w *writable) writeFile(name string, data []byte, perm fs.FileMode) error {
	if err := w.copyUpDir(path.Dir(name)); err != nil {
		return err
	}
	return w.top.ReplaceFile(name, data, perm)
}

// remove makes a file disappear: from the top, and from what lies below by a
// whiteout.
func (w *writable) remove(name string) error {
	if err := w.top.Remove(name); err != nil {
		return err
	}
	for _, l := range w.lowers {
		f, err := l.Open(name, unix.O_PATH|unix.O_NOFOLLOW, 0) // a dangling link is something too
		if err != nil {
			continue
		}
		_ = f.Close()
		if err := w.copyUpDir(path.Dir(name)); err != nil {
			return err
		}
		return w.top.Whiteout(name)
	}
	return nil
}

// list names the entries of a directory in all layers.
func (w *writable) list(dir string) []string {
	seen := map[string]bool{}
	var names []string
	for _, r := range w.roots() {
		entries, _ := r.ReadDir(dir)
		for _, e := range entries {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				names = append(names, e.Name())
			}
		}
	}
	return names
}

// copyUpDir makes a directory in the top with the mode and owner it has below.
func (w *writable) copyUpDir(dir string) error {
	dir = path.Clean("/" + dir)
	if dir == "/" || w.top.Exists(dir) {
		return nil
	}
	if err := w.copyUpDir(path.Dir(dir)); err != nil {
		return err
	}
	if err := w.top.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, l := range w.lowers {
		f, err := l.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		t, err := w.top.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer t.Close()
		return errors.Join(unix.Fchown(int(t.Fd()), int(st.Uid), int(st.Gid)), unix.Fchmod(int(t.Fd()), st.Mode&0o7777))
	}
	return nil
}
