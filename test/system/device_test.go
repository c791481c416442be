package system

import (
	"os"
	"strings"
	"testing"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

// A device works in the zone that has it, is refused by the kernel in another,
// and goes with its entry. What reaches the host itself is given to nobody.
func TestDevices(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	const fuse = "/dev/fuse" // /dev/net/tun is no example: some runtimes allow it to all containers
	if _, err := os.Stat(fuse); err != nil {
		hosttest.Skip(t, "needs "+fuse)
	}
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a")
	m.Must("create", "plain")
	m.Must("config", "add", "a", "device", "match="+fuse)
	m.Must("config", "add", "a", "device", "match=/dev/nothing*")
	m.Must("boot", "a", "plain")

	use := func(path string) []string {
		return []string{"--", "perl", "-e", `open(F, "+<", shift) or do { print STDERR $!; exit 3 }`, path}
	}
	m.Must(append([]string{"exec", "a"}, use(fuse)...)...)
	if r := m.Try(append([]string{"exec", "plain"}, use(fuse)...)...); r.Code != 3 {
		t.Errorf("a zone without it: %d %s", r.Code, r.Stderr)
	}
	// A node that the zone makes itself opens nothing.
	if r := m.Try("exec", "plain", "--", "sh", "-c", "mknod /dev/fuse c 10 229"); r.Code == 0 {
		if r := m.Try(append([]string{"exec", "plain"}, use(fuse)...)...); r.Code != 3 || !strings.Contains(r.Stderr, "not permitted") {
			t.Errorf("a node of its own: %d %s", r.Code, r.Stderr)
		}
	}
	if r := m.Try("config", "clear", "a", "device"); r.Code != 0 || !strings.Contains(r.Stderr, "device takes effect at the next boot") {
		t.Errorf("clear: %d %s", r.Code, r.Stderr)
	}
	m.Must("reboot", "a")
	if r := m.Try(append([]string{"exec", "a"}, use(fuse)...)...); r.Code != 3 {
		t.Errorf("after its entry went: %d %s", r.Code, r.Stderr)
	}
	m.Refused(13, []string{"does not exist"}, "config", "add", "a", "device", "match=/dev/nothing")
	m.Refused(2, []string{"below /dev"}, "config", "add", "a", "device", "match=/etc/passwd")
	for _, d := range []struct{ path, why string }{{"/dev/mem", "memory"}, {"/dev/kmsg", "log"}, {"/dev/loop-control", "loop devices"}} {
		if _, err := os.Stat(d.path); err == nil {
			m.Refused(13, []string{d.path, d.why}, "config", "add", "a", "device", "match="+d.path)
		}
	}
	inUse(t, m)
}

// inUse tries to give away the disk that holds the zones.
func inUse(t *testing.T, m *machine.Machine) {
	t.Helper()
	disk := strings.TrimSpace(m.Inside("losetup", "-n", "-O", "NAME", "-j", m.Pool("tank").File))
	if disk == "" {
		t.Fatal("the pool is on no loop device")
	}
	m.Refused(13, []string{disk, "in use by the host"}, "config", "add", "a", "device", "match="+disk)
}
