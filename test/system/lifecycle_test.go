package system

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

func TestLifecycle(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) { lifecycle(t, m.On(t), root) })
	}
}

func lifecycle(t *testing.T, m *machine.Machine, root string) {
	m.Must("create", "a", "--image", "base", "--set", "root="+root)
	if z := m.Expect("a", "installed"); z.Root != root || z.Image != "base@1" || z.PID != 0 {
		t.Errorf("created: %+v", z)
	}
	if out := m.Must("list", "-q"); out != "" {
		t.Errorf("list without -c shows a zone that does not run: %q", out)
	}
	m.Refused(12, []string{"exec in a", "the zone is installed"}, "exec", "a", "--", "true")
	m.Refused(12, []string{"halt a", "installed"}, "halt", "a")
	m.Refused(12, []string{"create a", "exists already"}, "create", "a", "--image", "base")
	m.Refused(2, []string{"no terminal to ask on"}, "delete", "a")

	m.Must("boot", "a")
	first := m.Expect("a", "running").PID
	m.Refused(12, []string{"boot a", "running already"}, "boot", "a")
	m.Refused(11, []string{"tank", "zones run on it: a"}, "pool", "destroy", "tank", "-F")
	executes(t, m)

	m.Exec("a", "echo kept >/root/file")
	m.Must("reboot", "a")
	if pid := m.Expect("a", "running").PID; pid == first {
		t.Errorf("reboot left the first process %d", pid)
	}
	if got := m.Exec("a", "cat /root/file"); got != "kept" {
		t.Errorf("after a reboot the file holds %q", got)
	}
	m.Must("shutdown", "a")
	m.Expect("a", "installed")
	m.Must("ready", "a")
	m.Expect("a", "ready")
	m.Must("boot", "a")
	m.Expect("a", "running")
	m.Must("log", "a")
	m.Must("halt", "a")
	m.Expect("a", "installed")
	if line := m.Must("list", "-c", "-p"); !strings.HasPrefix(line, "-:a:installed:/") || strings.Count(line, ":") != 6 {
		t.Errorf("list -p: %q", line)
	}
	if out := m.Must("delete", "a", "--dry-run"); out != "would delete zone a\n" {
		t.Errorf("delete --dry-run: %q", out)
	}
	m.Must("delete", "a", "-F")
	m.Refused(10, []string{"zone a", "no such zone"}, "boot", "a")
	m.Tidy("tank")
}

// executes holds exec to passing input, output and status through.
func executes(t *testing.T, m *machine.Machine) {
	for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "exit 255": 255, "kill -9 $$": 137} {
		if r := m.Try("exec", "a", "--", "sh", "-c", script); r.Code != code {
			t.Errorf("exec %q: exit code %d, want %d; %s", script, r.Code, code, r.Stderr)
		}
	}
	r := m.TryInput("from outside\n", "exec", "a", "--", "sh", "-c", "cat; echo aside >&2")
	if r.Stdout != "from outside\n" || r.Stderr != "aside\n" {
		t.Errorf("exec passes %q and %q", r.Stdout, r.Stderr)
	}
	if got := m.Must("exec", "-e", "X=one two", "-C", "/usr", "a", "--", "sh", "-c", "echo $X $PWD"); got != "one two /usr\n" {
		t.Errorf("exec -e -C: %q", got)
	}
}

// A zone whose first process ends by itself is found, told of, and usable.
func TestZoneEndsByItself(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a")
	m.Must("boot", "a")
	if err := syscall.Kill(m.Expect("a", "running").PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, 5*time.Second, "the end of the zone", func() bool { return m.Zones()["a"].State == "installed" })
	m.Must("boot", "a")
	m.Expect("a", "running")
}

func TestSystemd(t *testing.T) {
	m := machine.New(t)
	m.SystemdImage()
	m.Must("create", "sys", "--image", "systemd")
	before := m.Snapshot()
	m.Must("boot", "sys")
	state := ""
	until(t, 60*time.Second, "systemd's start", func() bool {
		state = strings.TrimSpace(m.Try("exec", "sys", "--", "systemctl", "is-system-running").Stdout)
		return state == "running" || state == "degraded"
	})
	if state == "degraded" {
		t.Logf("failed units:\n%s", m.Exec("sys", "systemctl --failed --plain --no-legend"))
	}
	if got := m.Exec("sys", "systemctl is-active ssh.service"); got != "active" {
		t.Errorf("ssh.service is %s", got)
	}
	r := m.Try("shutdown", "sys")
	if r.Code != 0 || strings.Contains(r.Stderr, "halting it") {
		t.Errorf("shutdown: exit code %d after %s\n%s", r.Code, r.Took, r.Stderr)
	}
	m.Expect("sys", "installed")
	m.Unchanged(before)
}

// What must be a zone's own is new in each clone, on both kinds of root.
func TestCloneIdentity(t *testing.T) {
	m := machine.New(t)
	m.SystemdImage()
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) {
			m := m.On(t)
			m.Must("create", "one", "--set", "root="+root)
			m.Must("boot", "one")
			m.Exec("one", "echo mine >/root/file; test -s /etc/ssh/ssh_host_ed25519_key")
			m.Must("clone", "one", "two", "three")
			m.Must("boot", "two", "three")
			for what, script := range map[string]string{
				"host name": "hostname", "/etc/hostname": "cat /etc/hostname", "machine id": "cat /etc/machine-id",
				"ssh key": "cat /etc/ssh/ssh_host_ed25519_key.pub", "address": "hostname -I",
				"hardware address": "cat /sys/class/net/eth0/address",
			} {
				seen := map[string]string{}
				for _, z := range []string{"one", "two", "three"} {
					got := m.Exec(z, script)
					if got == "" {
						t.Errorf("%s has no %s", z, what)
					}
					if other, twice := seen[got]; twice {
						t.Errorf("%s and %s have the same %s: %q", other, z, what, got)
					}
					seen[got] = z
				}
			}
			if got := m.Exec("three", "cat /root/file; hostname"); got != "mine\nthree" {
				t.Errorf("the clone holds %q", got)
			}
			m.Clear()
		})
	}
}

func TestNetwork(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "one")
	m.Must("clone", "one", "two")
	m.Must("boot", "--all")
	serve := `use IO::Socket::INET; $s = IO::Socket::INET->new(Listen => 5, LocalPort => 7, ReuseAddr => 1) or die; ` +
		`$p = fork; exit 0 if $p; close STDOUT; close STDERR; while ($c = $s->accept) { print $c "here is two\n"; close $c }`
	m.Must("exec", "two", "--", "perl", "-e", serve)
	got := m.Must("exec", "one", "--", "bash", "-c", "cat <>/dev/tcp/"+m.Zones()["two"].Address+"/7")
	if got != "here is two\n" {
		t.Errorf("from the other zone: %q", got)
	}
	if got := m.Exec("one", "grep -c ^nameserver /etc/resolv.conf"); got == "0" {
		t.Error("no name server in /etc/resolv.conf")
	}
	t.Run("outside", func(t *testing.T) {
		m := m.On(t)
		hosttest.Require(t, hosttest.Internet)
		// apt-get update ends with 0 even when it reached nothing.
		m.Exec("one", "apt-get update -qq -o Acquire::Retries=2 --error-on=any")
		if n := m.Exec("one", "apt-cache dumpavail | grep -c ^Package:"); len(n) < 4 {
			t.Errorf("after apt-get update apt knows %s packages", n)
		}
	})
}
