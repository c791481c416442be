package guest

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zone/test/machine"
)

// createLimited makes and boots a zone with every limit, and returns what its
// cgroup has to hold.
func createLimited(m *machine.Machine, name string) []string {
	m.Must("create", name, "--image", "base", "--set", "capped-cpu=0.25", "--set", "cpu-shares=50",
		"--set", "capped-memory=64M", "--set", "capped-memory.swap=32M", "--set", "max-lwps=40")
	m.Must("boot", name)
	return []string{
		"cpu.max 25000 100000", "cpu.weight 50", "memory.max " + strconv.Itoa(64<<20),
		"memory.swap.max " + strconv.Itoa(32<<20), "pids.max 40",
	}
}

func limits(t *testing.T, m *machine.Machine) {
	want := createLimited(m, "a")
	m.Must("create", "b", "--image", "base", "--set", "cpu-shares=250",
		"--set", "capped-memory=128M", "--set", "capped-memory.swap=0")
	m.Must("create", "c", "--image", "base")
	m.Must("boot", "b", "c")
	a := m.Zones()["a"].PID
	dir := group(t, a)
	expectGroup(t, dir, want...)
	expectGroup(t, group(t, m.Zones()["b"].PID), "cpu.max max 100000", "cpu.weight 250", "memory.swap.max 0")
	// An unlimited zone weighs what others on the host weigh.
	expectGroup(t, group(t, m.Zones()["c"].PID), "cpu.max max 100000", "cpu.weight 100", "memory.max max", "pids.max max")

	m.Must("exec", "a", "--", "perl", "-e", `$x = "x" x (16 << 20); print length $x`)
	if r := m.Try("exec", "b", "--", "perl", "-e", `$x = "x" x (200 << 20); print "lived"`); r.Code != 137 {
		t.Errorf("200 MB within 128: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if n := keyed(t, filepath.Join(group(t, m.Zones()["b"].PID), "memory.events"), "oom_kill"); n == 0 {
		t.Error("the kernel counts no process of b killed for want of memory")
	}
	m.Expect("b", "running")

	forks := `for (1..60) { $p = fork; if (!defined $p) { print $n; kill 9, @k; exit 3 } if (!$p) { sleep 60; exit } push @k, $p; $n++ } kill 9, @k`
	r := m.Try("exec", "a", "--", "perl", "-e", forks)
	if n, _ := strconv.Atoi(r.Stdout); r.Code != 3 || n < 20 || n > 39 {
		t.Errorf("forks until refusal: %q, exit code %d %s", r.Stdout, r.Code, r.Stderr)
	}
	held(t, m, filepath.Join(dir, "cpu.stat"))
	watched(t, m)
	devicesKept(t, m, "a")
	m.Must("shutdown", "a")
	m.Must("halt", "b", "c")
}

// watched holds `zone stat` to the caps that the kernel has.
func watched(t *testing.T, m *machine.Machine) {
	var list struct {
		Zones []struct {
			Zone      string
			Memory    int64
			CPUCap    float64 `json:"cpu_cap"`
			MemoryCap int64   `json:"memory_cap"`
			SwapCap   int64   `json:"swap_cap"`
			PidsCap   int64   `json:"pids_cap"`
			Shares    int64
		}
	}
	decode(t, m.Must("stat", "-z", "a", "--json", "1", "1"), &list)
	for _, z := range list.Zones {
		if z.Zone != "a" {
			continue
		}
		if z.CPUCap != 0.25 || z.MemoryCap != 64<<20 || z.SwapCap != 32<<20 || z.PidsCap != 40 || z.Shares != 50 || z.Memory <= 0 {
			t.Errorf("stat of a: %+v", z)
		}
		return
	}
	t.Errorf("stat does not know the zone: %+v", list)
}

// devicesKept tries to read the machine's disk in the zone, beside a device
// that it may have. On cgroup v2 no file says which devices a zone may use: a
// BPF program does that runc attached.
func devicesKept(t *testing.T, m *machine.Machine, name string) {
	t.Helper()
	numbers := strings.Fields(host(t, "stat", "-c", "%Hr %Lr", "/dev/nvme0n1"))
	script := "cd /dev && rm -f null1 disk1 && mknod null1 c 1 3 && echo x >null1 && mknod disk1 b " + strings.Join(numbers, " ") +
		" && { head -c 1 disk1 || echo kept from it; }"
	if r := m.Try("exec", name, "--", "sh", "-c", script); r.Stdout != "kept from it\n" || !strings.Contains(r.Stderr, "Operation not permitted") {
		t.Errorf("%s reads the host's disk: %q %s", name, r.Stdout, r.Stderr)
	}
}

// held burns CPU in zone a, which may have a quarter of one, and counts by the
// kernel's own periods: by the clock an emulated machine tells nothing.
func held(t *testing.T, m *machine.Machine, file string) {
	used, periods, cut := keyed(t, file, "usage_usec"), keyed(t, file, "nr_periods"), keyed(t, file, "nr_throttled")
	m.Try("exec", "a", "--", "timeout", "4", "sh", "-c", "while :; do :; done")
	used = keyed(t, file, "usage_usec") - used
	periods = keyed(t, file, "nr_periods") - periods
	cut = keyed(t, file, "nr_throttled") - cut
	share := float64(used) / float64(max(periods, 1)) / 100_000
	t.Logf("%d periods, %d of them cut short, %.3f CPUs used", periods, cut, share)
	if periods < 10 || cut < periods/2 || share > 0.32 {
		t.Error("a cap of 0.25 CPUs did not hold")
	}
}

// reload has systemd look through its units again, and start and end some with
// limits of their own, while zones run that it knows nothing of.
func reload(t *testing.T, m *machine.Machine) {
	want := createLimited(m, "a")
	dir := group(t, m.Zones()["a"].PID)
	limited := []string{
		"systemd-run", "--quiet", "--wait", "--slice=other.slice",
		"-p", "CPUWeight=20", "-p", "CPUQuota=50%", "-p", "MemoryMax=64M", "-p", "TasksMax=9", "true",
	}
	host(t, "systemctl", "daemon-reload")
	host(t, limited...)
	host(t, "systemctl", "stop", "other.slice")
	host(t, "systemctl", "daemon-reload")
	host(t, "systemctl", "daemon-reexec")
	expectGroup(t, dir, want...)
	devicesKept(t, m, "a")
	m.Expect("a", "running")
	if left := read(t, filepath.Join(dir, "cgroup.procs")); left == "" {
		t.Error("the zone's processes were moved elsewhere")
	}
	m.Must("delete", "a", "-F")

	// With no zone left systemd may take the controllers back.
	host(t, limited...)
	host(t, "systemctl", "daemon-reload")
	want = createLimited(m, "b")
	expectGroup(t, group(t, m.Zones()["b"].PID), want...)
}

// fromService boots a zone from a unit of systemd, as an autoboot would: the
// zone is not the unit's and lives on when it ends.
func fromService(t *testing.T, m *machine.Machine) {
	m.Must("create", "a", "--image", "base")
	c := m.Command(t.Context(), "boot", "a")
	unit := []string{"systemd-run", "--quiet", "--wait", "--pipe", "--collect", "-p", "PrivateTmp=no", "-p", "KillMode=control-group"}
	for _, e := range c.Env {
		if strings.HasPrefix(e, "ZONE_HOME=") || strings.HasPrefix(e, "ZONE_RUN=") || strings.HasPrefix(e, "PATH=") {
			unit = append(unit, "--setenv="+e)
		}
	}
	host(t, append(unit, c.Args...)...)
	m.Expect("a", "running")
	if got := m.Exec("a", "echo lives"); got != "lives" {
		t.Errorf("the zone says %q", got)
	}
	if dir := group(t, m.Zones()["a"].PID); strings.Contains(dir, ".service") || strings.Contains(dir, ".slice") {
		t.Errorf("the zone is in %s, which is systemd's to end", dir)
	}
	m.Must("shutdown", "a")
}
