package system

import (
	"strconv"
	"strings"
	"testing"

	"zone/test/machine"
)

func TestLimits(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a", "--set", "capped-cpu=0.25", "--set", "cpu-shares=50",
		"--set", "capped-memory=64M", "--set", "capped-memory.swap=0", "--set", "max-lwps=40")
	m.Must("boot", "a")
	pid := m.Zones()["a"].PID

	// The numbers as the kernel keeps them, v1 first.
	if got := groupFile(t, pid, "memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(64<<20) {
		t.Errorf("memory limit: %s", got)
	}
	if got := groupFile(t, pid, "pids", "pids.max", "pids.max"); got != "40" {
		t.Errorf("pids limit: %s", got)
	}
	if got := groupFile(t, pid, "cpu", "cpu.cfs_quota_us", "cpu.max"); got != "25000" && got != "25000 100000" {
		t.Errorf("cpu quota: %s", got)
	}
	if got := groupFile(t, pid, "cpu", "cpu.shares", "cpu.weight"); got != "512" && got != "50" {
		t.Errorf("cpu shares: %s", got)
	}
	t.Run("memory", func(t *testing.T) {
		m := m.On(t)
		m.Must("exec", "a", "--", "perl", "-e", `$x = "x" x (24 << 20); print length $x`)
		if r := m.Try("exec", "a", "--", "perl", "-e", `$x = "x" x (200 << 20); print "lived"`); r.Code != 137 {
			t.Errorf("200 MB within 64: exit code %d, %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if z := m.Expect("a", "running"); z.PID != pid {
			t.Errorf("the zone's first process was %d and is %d", pid, z.PID)
		}
	})
	t.Run("lwps", func(t *testing.T) {
		m := m.On(t)
		count := `for (1..60) { $p = fork; if (!defined $p) { print $n; kill 9, @k; exit 3 } if (!$p) { sleep 60; exit } push @k, $p; $n++ } kill 9, @k`
		r := m.Try("exec", "a", "--", "perl", "-e", count)
		if n, _ := strconv.Atoi(r.Stdout); r.Code != 3 || n < 20 || n > 39 {
			t.Errorf("forks until refusal: %q, exit code %d %s", r.Stdout, r.Code, r.Stderr)
		}
	})
	t.Run("cpu", func(t *testing.T) { cpuHeld(t, m.On(t), pid) })
	t.Run("inside", func(t *testing.T) {
		m := m.On(t)
		if r := m.Try("exec", "a", "--", "sh", "-c", "echo 1 >/proc/sys/kernel/panic"); r.Code == 0 {
			t.Error("a zone may write to the kernel's settings")
		}
		paths := m.Exec("a", "cat /proc/self/cgroup")
		for line := range strings.Lines(paths) {
			if !strings.HasSuffix(strings.TrimSpace(line), ":/") {
				t.Errorf("the zone sees where its cgroup is: %s", line)
			}
		}
	})
}

// cpuHeld burns CPU in the zone and counts by the kernel's own periods, not by
// the clock: in each the zone may have a quarter.
func cpuHeld(t *testing.T, m *machine.Machine, pid int) {
	stat := func() (periods, throttled int64) {
		text := groupFile(t, pid, "cpu", "cpu.stat", "cpu.stat")
		return keyed(t, text, "nr_periods"), keyed(t, text, "nr_throttled")
	}
	used := func() int64 {
		text := groupFile(t, pid, "cpuacct", "cpuacct.usage", "cpu.stat")
		if strings.Contains(text, " ") {
			return keyed(t, text, "usage_usec") * 1000
		}
		return number(t, text)
	}
	p0, t0 := stat()
	u0 := used()
	m.Try("exec", "a", "--", "timeout", "3", "sh", "-c", "while :; do :; done")
	p1, t1 := stat()
	u1 := used()
	share := float64(u1-u0) / float64(p1-p0) / 100e6
	t.Logf("%d periods, %d of them cut short, %.3f CPUs used", p1-p0, t1-t0, share)
	// Less than the cap is what a busy machine gives; more must never be.
	if p1-p0 < 10 || t1 == t0 || share > 0.30 {
		t.Errorf("a cap of 0.25 CPUs did not hold")
	}
}
