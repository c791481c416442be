// Package hosttest helps tests that touch the machine, or must not: Require
// says what a test needs, Runner plays outside programs from a script, and
// Snapshot with Diff finds what a test left behind.
package hosttest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"zone/internal/host"
)

// The environment of the tests.
const (
	// MustEnv lists needs and test names, comma-separated, that must not be
	// skipped: missing ones fail the test. "all" stands for every need.
	MustEnv = "ZONE_TEST_MUST"
	// SkipsEnv names a file to which each skip adds a line: test, tab, reason.
	SkipsEnv = "ZONE_TEST_SKIPS"
)

// Need is something of the machine that a test cannot do without.
type Need string

// The needs. For an outside program see Tool.
const (
	Root     Need = "root"     // user id 0, with the right to mount
	Btrfs    Need = "btrfs"    // btrfs in the kernel and mkfs.btrfs
	Loop     Need = "loop"     // loop devices
	Overlay  Need = "overlay"  // overlayfs in the kernel
	Runc     Need = "runc"     // the runc program
	CgroupV1 Need = "cgroup1"  // controllers on cgroup v1
	CgroupV2 Need = "cgroup2"  // a cgroup2 mount, alone or beside v1
	Network  Need = "network"  // the right to make network namespaces and links
	Internet Need = "internet" // a default route
	VM       Need = "vm"       // the virtual machine of `make test-vm`
)

// Tool is the need of an outside program.
func Tool(name string) Need { return Need("tool:" + name) }

// Require skips the test, with a reason, when the machine lacks a need.
func Require(t testing.TB, needs ...Need) {
	t.Helper()
	for _, n := range needs {
		reason := n.missing()
		if reason == "" {
			continue
		}
		skip(t, n, reason)
	}
}

// Skip skips the test for a reason that only the test itself can find out, and
// counts it as Require does.
func Skip(t testing.TB, reason string) {
	t.Helper()
	skip(t, "", reason)
}

func skip(t testing.TB, n Need, reason string) {
	t.Helper()
	if must(t.Name(), n) {
		t.Fatalf("%s must not be skipped (%s): %s", t.Name(), MustEnv, reason)
	}
	record(t, reason)
	t.Skip(reason)
}

func must(test string, n Need) bool {
	list := strings.Split(os.Getenv(MustEnv), ",")
	top, _, _ := strings.Cut(test, "/")
	return slices.ContainsFunc(list, func(s string) bool {
		s = strings.TrimSpace(s)
		return s != "" && (s == "all" || s == string(n) || s == test || s == top)
	})
}

func record(t testing.TB, reason string) {
	t.Helper()
	file := os.Getenv(SkipsEnv)
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s\t%s\n", t.Name(), reason)
		_ = f.Close()
	}
	if err != nil {
		t.Fatalf("note the skip: %v", err)
	}
}

// missing says why the need is not met, "" when it is.
func (n Need) missing() string {
	switch n {
	case Root:
		return unless(os.Geteuid() == 0, "needs root")
	case Btrfs:
		return first(unless(hasFilesystem("btrfs"), "needs btrfs in the kernel"), Tool("mkfs.btrfs").missing())
	case Overlay:
		return unless(hasFilesystem("overlay"), "needs overlayfs in the kernel")
	case Loop:
		return unless(exists("/dev/loop-control"), "needs loop devices (/dev/loop-control)")
	case Runc:
		return Tool("runc").missing()
	case CgroupV1:
		return unless(hasMount("cgroup"), "needs controllers on cgroup v1")
	case CgroupV2:
		return unless(hasMount("cgroup2"), "needs a cgroup2 mount")
	case Network:
		return first(Root.missing(), unless(exists("/proc/self/ns/net"), "needs network namespaces"))
	case Internet:
		return unless(hasRoute(), "needs a way to other networks")
	case VM:
		return unless(os.Getenv("ZONE_VM") != "", "needs the virtual machine of `make test-vm`")
	}
	if tool, ok := strings.CutPrefix(string(n), "tool:"); ok {
		_, err := exec.LookPath(tool)
		return unless(err == nil, "needs the program "+tool)
	}
	panic(fmt.Sprintf("hosttest: unknown need %q", n))
}

func unless(ok bool, reason string) string {
	if ok {
		return ""
	}
	return reason
}

func first(reasons ...string) string {
	for _, r := range reasons {
		if r != "" {
			return r
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// hasFilesystem reports whether the kernel knows a file system, loading its
// module if it has to.
func hasFilesystem(name string) bool {
	known := func() bool {
		b, _ := os.ReadFile("/proc/filesystems")
		return slices.Contains(strings.Fields(string(b)), name)
	}
	if known() {
		return true
	}
	_, _ = host.Exec{}.Run(context.Background(), host.Cmd{Name: "modprobe", Args: []string{name}, Timeout: 5 * time.Second})
	return known()
}

func hasMount(fsType string) bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Contains(string(b), " - "+fsType+" ")
}

func hasRoute() bool {
	c, err := net.Dial("udp", "192.0.2.1:9") // sends nothing: asks the routing table
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
