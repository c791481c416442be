package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zone/internal/host/hosttest"
	"zone/internal/network"
	"zone/internal/zone"
)

const prefix = "zone-machine-"

// claim makes the directory of an installation. Its lock says that the test
// that made it lives; sweep keeps away from it.
func claim(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "owner"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() }) // runs after leave, and keeps the file open until then
	return dir
}

// sweep removes installations whose test was killed before it could.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range dirs {
		lock, err := os.OpenFile(filepath.Join(dir, "owner"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			salvage(dir)
		}
		_ = lock.Close()
	}
}

// leave takes the installation down with its own commands, and fails the test
// when that leaves anything. What a broken program leaves is removed by force,
// so that the next test starts on a clean machine.
func (m *Machine) leave() {
	dir := filepath.Dir(m.Home)
	defer salvage(dir)
	if _, err := os.Stat(m.Home); err != nil {
		return // nothing was ever done
	}
	if m.t.Failed() {
		for _, z := range m.Zones() {
			m.t.Logf("zone %s at the end: %s %s", z.Name, z.State, z.Why)
		}
	}
	m.Clear()
	for _, pool := range strings.Fields(m.Try("pool", "list", "-q").Stdout) {
		if r := m.Try("pool", "destroy", pool, "-F"); r.Code != 0 {
			m.t.Errorf("pool destroy %s: %s", pool, r.Stderr)
		}
	}
	// Listing pools pins the mount namespace again; nothing is kept in it.
	_ = syscall.Unmount(m.pin(), syscall.MNT_DETACH)
	_ = syscall.Unmount(filepath.Dir(m.pin()), syscall.MNT_DETACH)
	m.Unchanged(m.before)
	m.noneLeft()
}

// Clear deletes all zones, which has to succeed from whatever state they are
// in, and checks that their pools hold nothing unfinished.
func (m *Machine) Clear() {
	m.t.Helper()
	m.Zones()
	if r := m.Try("delete", "-F", "--all"); r.Code != 0 {
		m.t.Errorf("delete -F --all: exit code %d\n%s", r.Code, r.Stderr)
	}
	for _, pool := range strings.Fields(m.Must("pool", "list", "-q")) {
		m.Tidy(pool)
	}
}

// Tidy checks that a pool without zones holds nothing of any.
func (m *Machine) Tidy(pool string) {
	m.t.Helper()
	script := `cd "$1" && for d in zones layers tmp trash shared/zones; do [ ! -d $d ] || find $d -mindepth 1 -maxdepth 3 ! -name '*.lock'; done`
	if left := m.Inside("sh", "-c", script, "sh", m.PoolPath(pool, "")); left != "" {
		m.t.Errorf("left in pool %s:\n%s", pool, left)
	}
	if entries, _ := os.ReadDir(filepath.Join(m.Home, "journal")); len(entries) > 0 {
		m.t.Errorf("left in the journal: %v", entries)
	}
}

// Snapshot captures what there is of this installation on the host.
func (m *Machine) Snapshot() hosttest.HostState {
	m.t.Helper()
	m.Zones()
	return hosttest.Snapshot(m.t).Only(m.mine)
}

// Unchanged checks that the host holds of this installation what it held
// before. What the kernel clears away late is waited for.
func (m *Machine) Unchanged(before hosttest.HostState) {
	m.t.Helper()
	diff := "?"
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if diff = hosttest.Diff(before.Only(m.mine), hosttest.Snapshot(m.t).Only(m.mine)); diff == "" {
			return
		}
	}
	m.t.Errorf("changed on the host:\n%s", diff)
}

// mine tells what on the host belongs to this installation: its directory in
// mounts and loop devices, its tag in cgroups, bridge and rules, the links of
// its zones.
func (m *Machine) mine(entry string) bool {
	if strings.Contains(entry, filepath.Dir(m.Home)) || strings.Contains(entry, m.tag) {
		return true
	}
	for uuid := range m.uuids {
		if uuid != "" && entry == network.HostLink(uuid+zone.HomeTag(m.Home)) {
			return true
		}
	}
	return false
}

// noneLeft checks that no process of the machine has to do with the
// installation any more.
func (m *Machine) noneLeft() {
	var left []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = processesOf(filepath.Dir(m.Home)); len(left) == 0 {
			return
		}
	}
	m.t.Errorf("processes left:\n%s", strings.Join(left, "\n"))
}

// processesOf lists the processes that name the directory on their command
// line or in their environment, or that see one of its pools mounted.
func processesOf(dir string) []string {
	var list []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		if filepath.Base(proc) == strconv.Itoa(os.Getpid()) {
			continue
		}
		for file, sign := range map[string]string{"cmdline": dir, "environ": dir, "mountinfo": dir + "/run/pools/"} {
			data, err := os.ReadFile(filepath.Join(proc, file))
			if err == nil && strings.Contains(string(data), sign) {
				comm, _ := os.ReadFile(filepath.Join(proc, "comm"))
				list = append(list, fmt.Sprintf("%s %s (by its %s)", filepath.Base(proc), strings.TrimSpace(string(comm)), file))
				break
			}
		}
	}
	return list
}

// tagOf is what names on the host that belong to a home have in common.
func tagOf(home string) string {
	sum := sha256.Sum256([]byte(home))
	return hex.EncodeToString(sum[:4])
}

// salvage removes an installation without asking the program: its processes,
// cgroups, links, rules, mounts, loop devices and files.
func salvage(dir string) {
	tag := tagOf(filepath.Join(dir, "home"))
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/zone-" + tag)
	more, _ := filepath.Glob("/sys/fs/cgroup/zone-" + tag)
	for _, group := range append(groups, more...) {
		emptyGroup(group)
	}
	for _, p := range processesOf(dir) {
		if pid, err := strconv.Atoi(strings.Fields(p)[0]); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = syscall.Unmount(filepath.Join(dir, "run/ns/mnt"), syscall.MNT_DETACH)
	_ = syscall.Unmount(filepath.Join(dir, "run/ns"), syscall.MNT_DETACH)
	quietly("ip", "link", "del", "zn"+tag)
	quietly("nft", "delete", "table", "inet", "zone_zn"+tag)
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), dir) {
			quietly("losetup", "-d", "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(f))))
		}
	}
	_ = os.RemoveAll(dir)
}

// emptyGroup kills what is in a cgroup and removes it with those below it.
func emptyGroup(top string) {
	var dirs []string
	_ = filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	slices.Reverse(dirs) // children before parents
	for _, d := range dirs {
		for range 50 {
			procs, _ := os.ReadFile(filepath.Join(d, "cgroup.procs"))
			for _, p := range strings.Fields(string(procs)) {
				if pid, err := strconv.Atoi(p); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			if strings.Contains(d, "/freezer/") {
				_ = os.WriteFile(filepath.Join(d, "freezer.state"), []byte("THAWED"), 0o600)
			}
			if syscall.Rmdir(d) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// quietly runs a program that may find nothing to do.
func quietly(name string, args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = exec.CommandContext(ctx, name, args...).Run()
}
