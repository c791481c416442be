package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

// Group is one path in all hierarchies of the host.
type Group struct {
	tree Tree
	path string
}

// Path returns the group's path below the hierarchies' roots: "/zone/web1".
func (g Group) Path() string { return g.path }

// Exists reports whether the group is there in any hierarchy.
func (g Group) Exists() bool {
	for _, m := range g.tree.mounts {
		if isDir(m + g.path) {
			return true
		}
	}
	return false
}

// ID tells one life of the group from the next: it is 0 when there is none and
// changes when the group is removed and made again.
func (g Group) ID() uint64 {
	for _, dir := range g.dirs() {
		if st, err := os.Stat(dir); err == nil {
			return st.Sys().(*syscall.Stat_t).Ino
		}
	}
	return 0
}

// dirs returns the group's directories that exist, that of cgroup2 first.
func (g Group) dirs() []string {
	var dirs []string
	for _, m := range g.tree.mounts {
		if dir := filepath.Join(m, g.path); isDir(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// isDir is os.Stat without its cost in memory: it is asked for every zone in
// every reading.
func isDir(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// unified returns the group's directory in cgroup2, or "" when there is none.
func (g Group) unified() string {
	if g.tree.unified == "" {
		return ""
	}
	dir := filepath.Join(g.tree.unified, g.path)
	if !isDir(dir) {
		return ""
	}
	return dir
}

// controller returns the directory that holds a controller's files for this
// group: the v1 hierarchy's, else that of cgroup2. It may not exist.
func (g Group) controller(name string) string {
	if m := g.tree.v1[name]; m != "" {
		return filepath.Join(m, g.path)
	}
	if g.tree.Layout == LayoutV2 {
		return filepath.Join(g.tree.unified, g.path)
	}
	return ""
}

// Procs returns the ids of all processes in the group and the groups below it,
// sorted. Being in one hierarchy is enough: a process that just joins is in
// some of them already. A group that does not exist has none.
func (g Group) Procs() ([]int, error) {
	var pids []int
	for _, dir := range g.dirs() {
		err := eachProcs(dir, func(b []byte) bool {
			pids = appendPids(pids, b)
			return true
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of %s: %w", g.path, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Populated reports whether any process is left in the group or below it, in
// any hierarchy.
func (g Group) Populated() (bool, error) {
	if dir := g.unified(); dir != "" && g.path != "/" {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if err == nil && keyedValue(b, "populated") == 1 {
			return true, nil
		}
		if err != nil && !gone(err) {
			return false, fmt.Errorf("look for processes of %s: %w", g.path, err)
		}
	}
	found := false
	for _, dir := range g.dirs() {
		err := eachProcs(dir, func(b []byte) bool {
			found = len(bytes.TrimSpace(b)) > 0
			return !found
		})
		if err != nil {
			return false, fmt.Errorf("look for processes of %s: %w", g.path, err)
		}
		if found {
			return true, nil
		}
	}
	return false, nil
}

// eachProcs calls f with the content of cgroup.procs of dir and of every
// directory below it, until f says no.
func eachProcs(dir string, f func([]byte) bool) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if !d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // a threaded group: listed by the group it belongs to
		}
		if err != nil {
			return ignoreGone(err)
		}
		if !f(b) {
			return fs.SkipAll
		}
		return nil
	})
}

// gone reports whether err says that a group was removed: its directory is
// missing, or a file of it was opened before.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// Create makes the group in every hierarchy, with its parents. On v2 it turns
// on all controllers for it as far as the parents allow; on v1 it hands down
// the CPUs and memory nodes, without which no process can join.
func (g Group) Create() error {
	for _, m := range g.tree.mounts {
		dir := m
		for _, name := range strings.Split(strings.Trim(g.path, "/"), "/") {
			if g.tree.Layout == LayoutV2 {
				enableControllers(dir)
			}
			parent := dir
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create group %s: %w", g.path, err)
			}
			if m != g.tree.v1["cpuset"] {
				continue
			}
			if err := inheritCPUSet(parent, dir); err != nil {
				return fmt.Errorf("create group %s: %w", g.path, err)
			}
		}
	}
	return nil
}

// enableControllers hands the controllers of dir down to its children. One
// that cannot be handed down has no files below, which is where it shows.
func enableControllers(dir string) {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range strings.Fields(string(b)) {
		_ = writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+c)
	}
}

func inheritCPUSet(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		file := filepath.Join(dir, name)
		if b, err := os.ReadFile(file); err != nil || len(bytes.TrimSpace(b)) > 0 {
			if err != nil {
				return err
			}
			continue
		}
		b, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if err := writeFile(file, string(bytes.TrimSpace(b))); err != nil {
			return err
		}
	}
	return nil
}

// Join moves a process into the group, in every hierarchy.
func (g Group) Join(pid int) error {
	for _, dir := range g.dirs() {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), fmt.Sprint(pid)); err != nil {
			return fmt.Errorf("join %s: %w", g.path, err)
		}
	}
	return nil
}

// busyWait is how long Remove waits for the kernel to let go of a group whose
// last process has just ended.
const busyWait = 2 * time.Second

// Remove removes the group and all below it from every hierarchy. One that is
// gone already is success; one with processes left is Busy.
func (g Group) Remove() error {
	if g.path == "/" {
		return errors.New("remove group /: is the root")
	}
	deadline := time.Now().Add(busyWait)
	pause := time.Millisecond
	for {
		err := g.removeOnce()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove group %s: %w", g.path, err)
		}
		if populated, _ := g.Populated(); populated || time.Now().After(deadline) {
			return errdefs.Wrap(errdefs.Busy, "remove group "+g.path, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
}

func (g Group) removeOnce() error {
	var errs []error
	for _, m := range g.tree.mounts {
		parent, err := os.OpenRoot(filepath.Join(m, filepath.Dir(g.path)))
		if err == nil {
			err = removeTree(parent, filepath.Base(g.path))
			_ = parent.Close()
		}
		errs = append(errs, ignoreGone(err))
	}
	return errors.Join(errs...)
}

// removeTree removes the group called name and those below it. It goes by open
// directories, since a zone can nest groups deeper than any path reaches.
func removeTree(parent *os.Root, name string) error {
	err := parent.Remove(name)
	if err == nil || gone(err) {
		return nil
	}
	dir, openErr := parent.OpenRoot(name)
	if openErr != nil {
		return ignoreGone(openErr)
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return ignoreGone(err)
	}
	entries, err := f.ReadDir(-1)
	_ = f.Close()
	if err != nil {
		return ignoreGone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeTree(dir, e.Name()); err != nil {
			return err
		}
	}
	return ignoreGone(parent.Remove(name))
}

// writeFile writes a value to a control file, which must exist.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// RemoveEmpty removes the group's directories that hold neither processes nor
// groups, and leaves the others as they are.
func (g Group) RemoveEmpty() {
	for _, dir := range g.dirs() {
		_ = unix.Rmdir(dir)
	}
}
