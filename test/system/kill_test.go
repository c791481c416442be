package system

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zone/test/machine"
)

// moments is how often each command is killed, in each of the two ways.
const moments = 20

// killing is a command that is killed at random moments.
type killing struct {
	name    string
	args    []string
	prepare func(m *machine.Machine) // brings about what the command needs
}

// SIGKILL at any moment leaves something that the next command explains and
// mends, that can be deleted, and that no other zone notices.
func TestKill(t *testing.T) {
	t.Parallel()
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "witness")
	m.Must("boot", "witness")
	m.Exec("witness", "echo untouched >/root/file; sync")
	m.Must("create", "src")
	m.Must("boot", "src")
	m.Exec("src", "echo source >/root/file; sync")
	m.Must("halt", "src")

	fresh := func(m *machine.Machine) {
		if _, there := m.Zones()["x"]; !there {
			m.Must("clone", "src", "x")
		}
	}
	for _, k := range []killing{
		{"create", []string{"create", "x"}, func(*machine.Machine) {}},
		{"clone", []string{"clone", "src", "x", "--count", "8"}, func(*machine.Machine) {}},
		{"boot", []string{"boot", "x"}, fresh},
		{"halt", []string{"halt", "x"}, func(m *machine.Machine) { fresh(m); m.Must("boot", "x") }},
		{"delete", []string{"delete", "-F", "x"}, func(m *machine.Machine) { fresh(m); m.Must("boot", "x") }},
	} {
		for _, whole := range []bool{false, true} {
			name := k.name + "/alone"
			if whole {
				name = k.name + "/with-its-children"
			}
			t.Run(name, func(t *testing.T) { killedAtMoments(t, m.On(t), k, whole) })
		}
	}
}

func killedAtMoments(t *testing.T, m *machine.Machine, k killing, whole bool) {
	witness := m.Expect("witness", "running").PID
	clear := func() {
		if left := others(m); len(left) > 0 {
			m.Must(append([]string{"delete", "-F"}, left...)...)
		}
	}
	normal := time.Hour
	for range 3 { // the fastest: most kills are to meet the command alive
		k.prepare(m)
		normal = min(normal, m.Try(k.args...).Took)
		clear()
	}
	before := m.Snapshot()
	cut := 0
	for i := range moments {
		k.prepare(m)
		delay := time.Duration(rand.Float64() * 1.5 * float64(normal))
		if killedAfter(t, m, k.args, delay, whole) {
			cut++
		}
		explained(t, m, fmt.Sprintf("%s killed after %s", k.name, delay), i%5 == 0)
		if z := m.Zones()["witness"]; z.State != "running" || z.PID != witness {
			t.Fatalf("the witness was process %d and is %+v", witness, z)
		}
		clear()
		m.Unchanged(before)
		if t.Failed() {
			t.Fatalf("after %s killed after %s of %s", k.name, delay, normal)
		}
	}
	if got := m.Exec("witness", "cat /root/file"); got != "untouched" {
		t.Errorf("the witness holds %q", got)
	}
	leftInPool(t, m)
	t.Logf("normally %s; cut off %d of %d times", normal.Round(time.Millisecond), cut, moments)
	if cut < moments/4 {
		t.Errorf("only %d of %d kills met the command alive: the test is void", cut, moments)
	}
}

// others names the zones that a killed command may have made.
func others(m *machine.Machine) []string {
	return slices.DeleteFunc(m.Names(), func(n string) bool { return n == "witness" || n == "src" })
}

// killedAfter starts a command and kills it, alone or with all that descends
// from it. It reports whether the command was still there.
func killedAfter(t *testing.T, m *machine.Machine, args []string, delay time.Duration, whole bool) bool {
	t.Helper()
	c := m.Command(t.Context(), args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("zone %v, not killed: %v", args, err)
		}
		return false
	case <-time.After(delay):
	}
	pids := []int{c.Process.Pid}
	if whole {
		pids = tree(c.Process.Pid)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-ended
	return !c.ProcessState.Exited()
}

// tree lists a process and its descendants.
func tree(pid int) []int {
	all := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		children, _ := os.ReadFile(f)
		for _, c := range strings.Fields(string(children)) {
			var n int
			if _, err := fmt.Sscan(c, &n); err == nil {
				all = append(all, tree(n)...)
			}
		}
	}
	return all
}

// explained checks that the first command after a kill succeeds, finds every
// zone in a state that can be used, and says what happened if it mended.
func explained(t *testing.T, m *machine.Machine, what string, use bool) {
	t.Helper()
	begun := unfinished(m)
	r := m.Try("list", "-c")
	if r.Code != 0 {
		t.Errorf("%s: list -c ends with %d: %s", what, r.Code, r.Stderr)
	}
	if begun && !strings.Contains(r.Stderr, "was cut off") {
		t.Errorf("%s: list -c does not say what was cut off: %q", what, r.Stderr)
	}
	for name, z := range m.Zones() {
		switch z.State {
		case "installed":
			if use && name != "src" {
				m.Must("boot", name)
				if got := m.Exec(name, "hostname"); got != name {
					t.Errorf("%s: %s calls itself %q", what, name, got)
				}
			}
		case "running", "ready":
		default:
			t.Errorf("%s: %s is %s: %s", what, name, z.State, z.Why)
		}
	}
}

// unfinished reports whether the journal tells of a change that was begun: an
// entry with its first line whole.
func unfinished(m *machine.Machine) bool {
	files, _ := filepath.Glob(filepath.Join(m.Home, "journal", "*"))
	return slices.ContainsFunc(files, func(f string) bool {
		data, _ := os.ReadFile(f)
		return strings.Contains(string(data), "\n")
	})
}

// leftInPool checks that the pool holds the two zones and at most the layer
// that one of them may stand on.
func leftInPool(t *testing.T, m *machine.Machine) {
	t.Helper()
	for dir, allowed := range map[string]string{"tmp": "", "trash": "", "zones": "src witness", "layers": ""} {
		script := `cd "$1" 2>/dev/null && ls -A | grep -v '\.lock$'; true`
		got := strings.Join(strings.Fields(m.Inside("sh", "-c", script, "sh", m.PoolPath("tank", dir))), " ")
		if got != allowed {
			t.Errorf("in %s of the pool: %q", dir, got)
		}
	}
	if entries, _ := os.ReadDir(filepath.Join(m.Home, "journal")); len(entries) > 0 {
		t.Errorf("left in the journal: %v", entries)
	}
}
