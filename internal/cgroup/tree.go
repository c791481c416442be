// Package cgroup finds, reads, freezes, ends and removes control groups, the
// same way on v1, hybrid and v2 hosts. A Group is one path in all hierarchies
// at once. The limits of a new group are set by the container runtime; this
// package changes them later and reads back what the kernel holds. Nothing here keeps state: values may be used from
// several goroutines.
package cgroup

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"zone/internal/errdefs"
)

// The layouts of a host's control groups.
const (
	LayoutV1     = "v1"     // controllers on v1, no cgroup2 mount
	LayoutHybrid = "hybrid" // controllers on v1, cgroup2 mounted beside them
	LayoutV2     = "v2"     // all on cgroup2
)

// Tree is where the host's control groups are mounted.
type Tree struct {
	Layout string

	unified string            // mount point of cgroup2, or ""
	v1      map[string]string // controller (or "name=systemd") to mount point
	mounts  []string          // each hierarchy once, cgroup2 first
}

// Detect finds the hierarchies of the host whose file system starts at root,
// which is "/" outside tests. A host without control groups is NotSupported.
func Detect(root string) (Tree, error) {
	f, err := os.Open(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return Tree{}, fmt.Errorf("find control groups: %w", err)
	}
	defer f.Close()
	return parseTree(f, root)
}

func parseTree(r io.Reader, root string) (Tree, error) {
	mounts, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return Tree{}, fmt.Errorf("find control groups: %w", err)
	}
	t := Tree{v1: map[string]string{}}
	for _, m := range mounts {
		dir := filepath.Join(root, m.Mountpoint)
		if m.FSType == "cgroup2" {
			if t.unified == "" {
				t.unified = dir
			}
			continue
		}
		for _, c := range strings.Split(m.VFSOptions, ",") {
			if _, seen := t.v1[c]; !seen && isController(c) {
				t.v1[c] = dir
			}
		}
	}
	t.Layout = t.layout()
	if t.Layout == "" {
		return Tree{}, errdefs.New(errdefs.NotSupported, "find control groups", "no cgroup file system is mounted").
			WithHint("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	t.mounts = t.hierarchies()
	return t, nil
}

// isController tells a controller's or a hierarchy's name from the options
// that share its place in mountinfo.
func isController(option string) bool {
	switch option {
	case "rw", "ro", "xattr", "clone_children", "noprefix", "none", "all",
		"cpuset_v2_mode", "cpuset_noprefix", "favordynmods", "nofavordynmods":
		return false
	}
	return option != "" && !strings.HasPrefix(option, "release_agent=")
}

func (t Tree) layout() string {
	v1 := false
	for c := range t.v1 {
		v1 = v1 || !strings.HasPrefix(c, "name=")
	}
	switch {
	case v1 && t.unified != "":
		return LayoutHybrid
	case v1:
		return LayoutV1
	case t.unified != "":
		return LayoutV2
	}
	return ""
}

func (t Tree) hierarchies() []string {
	var dirs []string
	for _, dir := range t.v1 {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs) // cpu and cpuacct are often one hierarchy
	if t.unified != "" {
		dirs = slices.Insert(dirs, 0, t.unified)
	}
	return dirs
}

// Controllers lists the controllers that the host offers, of v1 and v2, by
// their kernel names, sorted.
func (t Tree) Controllers() ([]string, error) {
	var names []string
	for c := range t.v1 {
		if !strings.HasPrefix(c, "name=") {
			names = append(names, c)
		}
	}
	if t.unified != "" {
		b, err := os.ReadFile(filepath.Join(t.unified, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("list controllers: %w", err)
		}
		names = append(names, strings.Fields(string(b))...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Unified returns where cgroup2 is mounted, or "" on a pure v1 host.
func (t Tree) Unified() string { return t.unified }

// Group returns the group at path, below the root of every hierarchy. The
// group need not exist.
func (t Tree) Group(name string) Group {
	return Group{tree: t, path: path.Clean("/" + name)}
}
