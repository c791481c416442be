// Package guest tests the built program where cgroup v2 holds all controllers
// and systemd is the first process: in the virtual machine of `make test-vm`.
// Elsewhere it is skipped. All tests share one installation, since importing
// images takes long in a machine that is emulated; each leaves no zone behind.
package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

func TestGuest(t *testing.T) {
	hosttest.Require(t, hosttest.VM)
	m := machine.New(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *machine.Machine)
	}{
		{"doctor", doctor},
		{"pool", pool},
		{"limits", limits},
		{"reload", reload},
		{"fromService", fromService},
		{"network", network},
		{"bootsAtOnce", bootsAtOnce},
		{"killedBoot", killedBoot},
		{"patch", patch},
		{"systemd", systemdZone},
		{"holders", holders},
	} {
		t.Run(part.name, func(t *testing.T) {
			began := time.Now()
			m := m.On(t)
			t.Cleanup(m.Clear)
			part.test(t, m)
			t.Logf("%s", time.Since(began).Round(time.Second))
		})
	}
}

// doctor first makes sure that this is the machine it is said to be.
func doctor(t *testing.T, m *machine.Machine) {
	if comm := read(t, "/proc/1/comm"); comm != "systemd" {
		t.Fatalf("the first process is %s", comm)
	}
	r := m.Try("doctor", "--json")
	if r.Code != 0 {
		t.Errorf("doctor: exit code %d\n%s", r.Code, r.Stderr)
	}
	var list struct {
		Features []struct {
			Name   string `json:"feature"`
			Status string
			Detail string
		}
	}
	decode(t, r.Stdout, &list)
	details := map[string]string{}
	for _, f := range list.Features {
		t.Logf("%-28s %-8s %s", f.Name, f.Status, f.Detail)
		if f.Status == "present" {
			details[f.Name] = f.Detail
		}
	}
	if details["cgroup layout"] != "v2" {
		t.Errorf("the doctor finds cgroup layout %q", details["cgroup layout"])
	}
	for _, f := range []string{"runc", "nftables", "btrfs", "overlayfs", "loop devices", "controller cpu", "controller memory", "controller pids", "swap accounting"} {
		if _, present := details[f]; !present {
			t.Errorf("the doctor does not find %s", f)
		}
	}
}

// pool is made on a kernel without simple quotas, which it has to do without.
func pool(t *testing.T, m *machine.Machine) {
	r := m.Try("pool", "create", "tank", "--size", "4G")
	if r.Code != 0 {
		t.Fatalf("pool create: exit code %d\n%s", r.Code, r.Stderr)
	}
	if strings.Contains(r.Stderr, "simple quotas:") {
		t.Errorf("pool create speaks of quotas that Linux %s lacks: %s", read(t, "/proc/sys/kernel/osrelease"), r.Stderr)
	}
	status := m.Must("pool", "status", "tank")
	if strings.Contains(status, "simple quotas") || !strings.Contains(status, "instant clones") {
		t.Errorf("pool status:\n%s", status)
	}
	for _, image := range []string{"base", "systemd"} {
		began := time.Now()
		m.Must("image", "build", image, "--from", "tar:"+filepath.Join(os.Getenv("ZONE_VM_ROOTS"), image+".tar"))
		t.Logf("image %s: %s", image, time.Since(began).Round(time.Second))
	}
	for _, root := range []string{"sparse", "whole"} {
		m.Must("create", root, "--image", "base", "--set", "root="+root)
	}
	m.Must("boot", "--all")
	for _, root := range []string{"sparse", "whole"} {
		m.Exec(root, "echo kept >/root/file")
		m.Must("reboot", root)
		if got := m.Exec(root, "cat /root/file"); got != "kept" {
			t.Errorf("after a reboot of the %s zone its file holds %q", root, got)
		}
	}
	if mounts := read(t, "/proc/1/mountinfo"); strings.Contains(mounts, m.Run+"/pools/") || strings.Contains(mounts, "overlay") {
		t.Errorf("the host sees mounts of pools or zones:\n%s", mounts)
	}
	m.Must("shutdown", "sparse")
	m.Must("halt", "whole")
	m.Expect("sparse", "installed")
}

// group returns the directory of the cgroup that a process is in.
func group(t *testing.T, pid int) string {
	t.Helper()
	path, ok := strings.CutPrefix(read(t, fmt.Sprintf("/proc/%d/cgroup", pid)), "0::")
	if !ok {
		t.Fatalf("process %d is not in cgroup v2 alone", pid)
	}
	return filepath.Join("/sys/fs/cgroup", path)
}

// expectGroup checks files of a cgroup against "file value" lines.
func expectGroup(t *testing.T, dir string, want ...string) {
	t.Helper()
	for _, w := range want {
		file, value, _ := strings.Cut(w, " ")
		if got := read(t, filepath.Join(dir, file)); got != value {
			t.Errorf("%s/%s holds %q, want %q", dir, file, got, value)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// keyed returns the number behind a key in a file of "key number" lines.
func keyed(t *testing.T, file, key string) int {
	t.Helper()
	for line := range strings.Lines(read(t, file)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", key, file)
	return 0
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
}

// host runs a program of the machine, which has to succeed.
func host(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// until waits for something that takes a moment.
func until(t *testing.T, patience time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}
