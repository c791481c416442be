// Package system tests the built program end to end on a real machine: each
// test has an installation of its own, uses it by the command line only, and
// looks at what the kernel, the host and the zones themselves say.
package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zone/test/machine"
)

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

// until waits for something that takes a moment.
func until(t *testing.T, patience time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// groupFile reads a file of the cgroup that a process is in, told by the v1
// controller and file or, where that is not mounted, the file of v2.
func groupFile(t *testing.T, pid int, controller, v1, v2 string) string {
	t.Helper()
	memberships, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(memberships)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, c := range strings.Split(f[1], ",") {
			if c == controller {
				return groupRead(t, filepath.Join("/sys/fs/cgroup", controller, f[2], v1))
			}
		}
	}
	for line := range strings.Lines(string(memberships)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return groupRead(t, filepath.Join("/sys/fs/cgroup", path, v2))
		}
	}
	t.Fatalf("process %d is in no cgroup of %s", pid, controller)
	return ""
}

func groupRead(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// keyed returns the number behind a key in a file of "key number" lines.
func keyed(t *testing.T, text, key string) int64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			return number(t, f[1])
		}
	}
	t.Fatalf("no %s in %q", key, text)
	return 0
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
