package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"zone/internal/host"
)

// HostState is what of the machine a test may change and must put back. Each
// list is sorted.
type HostState struct {
	Mounts    []string // of the first process: "type source on mount point"
	Cgroups   []string // directories in all hierarchies
	Links     []string // network links of this network namespace
	Loops     []string // loop devices in use: "loop0 backing file"
	NftTables []string // "ip zone"
	Processes []string // "pid name" of those with a name asked for
}

// Snapshot captures the state of the machine. Processes are captured only
// when they have one of the given names (at most 15 characters count).
func Snapshot(t testing.TB, processes ...string) HostState {
	t.Helper()
	var s HostState
	var err [6]error
	s.Mounts, err[0] = mounts()
	s.Cgroups, err[1] = cgroups()
	s.Links, err[2] = links()
	s.Loops, err[3] = loops()
	s.NftTables, err[4] = nftTables()
	s.Processes, err[5] = processesNamed(processes)
	if err := errors.Join(err[:]...); err != nil {
		t.Fatalf("capture the state of the machine: %v", err)
	}
	for _, list := range []*[]string{&s.Mounts, &s.Cgroups, &s.Links, &s.Loops, &s.NftTables, &s.Processes} {
		slices.Sort(*list)
	}
	return s
}

// Only returns the state without the entries that keep refuses. Tests that
// run beside others use it to look at what bears their own name.
func (s HostState) Only(keep func(entry string) bool) HostState {
	only := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return !keep(e) })
	}
	return HostState{
		Mounts: only(s.Mounts), Cgroups: only(s.Cgroups), Links: only(s.Links),
		Loops: only(s.Loops), NftTables: only(s.NftTables), Processes: only(s.Processes),
	}
}

// Diff tells what is in after and not in before ("+") and the other way round
// ("-"), one a line; "" when nothing changed.
func Diff(before, after HostState) string {
	var b strings.Builder
	for _, l := range []struct {
		what          string
		before, after []string
	}{
		{"mount", before.Mounts, after.Mounts},
		{"cgroup", before.Cgroups, after.Cgroups},
		{"link", before.Links, after.Links},
		{"loop device", before.Loops, after.Loops},
		{"nft table", before.NftTables, after.NftTables},
		{"process", before.Processes, after.Processes},
	} {
		added(&b, "-", l.what, l.after, l.before)
		added(&b, "+", l.what, l.before, l.after)
	}
	return b.String()
}

// added writes what to has more often than from: two mounts at one place count
// as two.
func added(b *strings.Builder, sign, what string, from, to []string) {
	count := map[string]int{}
	for _, e := range from {
		count[e]++
	}
	for _, e := range to {
		if count[e]--; count[e] < 0 {
			fmt.Fprintf(b, "%s %s %s\n", sign, what, e)
		}
	}
}

func mounts() ([]string, error) {
	f, err := os.Open("/proc/1/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, m := range infos {
		list = append(list, fmt.Sprintf("%s %s on %s", m.FSType, m.Source, m.Mountpoint))
	}
	return list, nil
}

func cgroups() ([]string, error) {
	var list []string
	roots, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, err
	}
	for _, m := range roots {
		err := filepath.WalkDir(m.Mountpoint, func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed while walking
			}
			if err == nil && d.IsDir() {
				list = append(list, p)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

func links() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, l := range all {
		list = append(list, l.Name)
	}
	return list, nil
}

func loops() ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var list []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // released meanwhile
		}
		device := filepath.Base(filepath.Dir(filepath.Dir(f)))
		list = append(list, device+" "+strings.TrimSpace(string(b)))
	}
	return list, nil
}

// nftTables lists none where nft is missing or may not be asked.
func nftTables() ([]string, error) {
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		return nil, nil
	}
	res, err := host.Exec{}.Run(context.Background(), host.Cmd{Name: "nft", Args: []string{"list", "tables"}, Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(res.Stdout) {
		list = append(list, strings.TrimPrefix(strings.TrimSpace(line), "table "))
	}
	return list, nil
}

func processesNamed(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	var list []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		comm := strings.TrimSpace(string(b))
		if err != nil || !slices.ContainsFunc(names, func(n string) bool { return n[:min(15, len(n))] == comm }) {
			continue
		}
		list = append(list, filepath.Base(filepath.Dir(f))+" "+comm)
	}
	return list, nil
}
