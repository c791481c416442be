package system

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"zone/test/machine"
)

// Each property is set, and its effect is seen from inside and outside.
func TestProperties(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a", "--set", "capped-memory.locked=256K", "--set", "max-shm-memory=8M", "--set", "max-shm-ids=3",
		"--set", "max-sem-ids=4", "--set", "max-msg-ids=5", "--set", "hostid=1a2b3c4d", "--set", "limitpriv=default,-net_raw,-mknod")
	m.Must("create", "plain")
	m.Must("boot", "a", "plain")
	zones := m.Zones()
	a, plain := zones["a"].PID, zones["plain"].PID

	t.Run("locked", func(t *testing.T) {
		m := m.On(t)
		limits, err := os.ReadFile("/proc/" + strconv.Itoa(a) + "/limits")
		if err != nil || !hasFields(string(limits), "Max locked memory 262144 262144 bytes") {
			t.Errorf("outside: %s, %v", limits, err)
		}
		// mlock is call 149 or 228; a page more than allowed.
		lock := `$n = (POSIX::uname())[4] eq "x86_64" ? 149 : 228; $x = "x" x 1048576; exit(syscall($n, $x, shift) == 0 ? 0 : 3)`
		for size, want := range map[string]int{"131072": 0, "524288": 3} {
			if r := m.Try("exec", "a", "--", "perl", "-MPOSIX", "-e", `$s = int(shift); `+strings.ReplaceAll(lock, "shift", "$s"), size); r.Code != want {
				t.Errorf("locking %s bytes: exit code %d, want %d %s", size, r.Code, want, r.Stderr)
			}
		}
	})
	t.Run("System V", func(t *testing.T) {
		m := m.On(t)
		for file, want := range map[string]string{
			"shmmax": "8388608", "shmall": strconv.Itoa(8 << 20 / os.Getpagesize()), "shmmni": "3", "msgmni": "5", "sem": "32000 1024000000 500 4",
		} {
			if got := strings.Join(strings.Fields(m.Exec("a", "cat /proc/sys/kernel/"+file)), " "); got != want {
				t.Errorf("%s is %s, want %s", file, got, want)
			}
		}
		for what, want := range map[string]string{
			`$n++ while defined shmget(0, 4096, 0600) && $n < 99`: "3",
			`$n++ while defined semget(0, 1, 0600) && $n < 99`:    "4",
			`$n++ while defined msgget(0, 0600) && $n < 99`:       "5",
		} {
			if got := m.Exec("a", "perl -e '"+what+"; print $n'"); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
			if got := m.Exec("plain", "perl -e '"+what+"; print $n'"); got != "99" {
				t.Errorf("in a zone without limits, %s: %s", what, got)
			}
		}
	})
	t.Run("hostid", func(t *testing.T) {
		m := m.On(t)
		if got := m.Exec("a", "hostid"); got != "1a2b3c4d" {
			t.Errorf("hostid says %s", got)
		}
		m.Must("clone", "a", "b")
		if got := strings.TrimSpace(m.Must("config", "show", "b", "hostid")); got != "" {
			t.Errorf("the clone has the hostid %s", got)
		}
	})
	t.Run("limitpriv", func(t *testing.T) {
		m := m.On(t)
		const netRaw, mknod = 13, 27
		for pid, want := range map[int]uint64{a: 0, plain: 1<<netRaw | 1<<mknod} {
			if got := bounding(t, pid) & (1<<netRaw | 1<<mknod); got != want {
				t.Errorf("process %d: %x of the bounding set, want %x", pid, got, want)
			}
		}
		if r := m.Try("exec", "a", "--", "mknod", "/tmp/null", "c", "1", "3"); r.Code == 0 {
			t.Error("makes devices")
		}
		m.Exec("plain", "mknod /tmp/null c 1 3")
		m.Refused(2, []string{"limitpriv", "sys_admin", "root on the host"}, "config", "set", "a", "limitpriv=default,+sys_admin")
		m.Refused(2, []string{"limitpriv", "setuid", "required"}, "config", "set", "a", "limitpriv=default,-setuid")
	})
	t.Run("out of memory", func(t *testing.T) { oomPolicy(t, m.On(t)) })
}

// oomPolicy sees the whole zone end where the kernel can do that, and the
// refusal elsewhere.
func oomPolicy(t *testing.T, m *machine.Machine) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		m.Refused(13, []string{"capped-memory.oom=zone", "cgroup v2"}, "config", "set", "plain", "capped-memory=64M", "capped-memory.oom=zone")
		m.Must("create", "whole", "--set", "capped-memory=64M", "--set", "capped-memory.oom=zone")
		m.Refused(13, []string{"capped-memory.oom=zone", "cgroup v2"}, "boot", "whole")
		m.Expect("whole", "installed")
		return
	}
	m.Must("create", "whole", "--set", "capped-memory=64M", "--set", "capped-memory.swap=0", "--set", "capped-memory.oom=zone")
	m.Must("boot", "whole")
	m.Try("exec", "whole", "--", "perl", "-e", `$x = "x" x (200 << 20)`)
	m.Expect("whole", "down")
}

// hasFields reports whether a line of text begins with the words.
func hasFields(text, words string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.Join(strings.Fields(line), " "), words) {
			return true
		}
	}
	return false
}

// bounding returns the set of capabilities that a process can ever have.
func bounding(t *testing.T, pid int) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if hex, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return set
		}
	}
	t.Fatal("no CapBnd")
	return 0
}
