package system

import (
	"strings"
	"testing"

	"zone/test/machine"
)

// sendable makes a zone whose root holds what is easily lost on the way: a
// deletion, a directory made anew, an owner, a capability, a hard link, a hole.
func sendable(m *machine.Machine, name, root string) {
	m.Must("create", name, "--set", "root="+root, "--set", "max-lwps=321")
	m.Must("boot", name)
	m.Exec(name, `echo data >/root/file; ln /root/file /root/link; rm /etc/issue
		rm -rf /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/only
		chown 33:44 /root/file; chmod 4751 /root/file; truncate -s 1M /root/hole; ln -s file /root/soft; sync`)
	m.Must("halt", name)
}

const content = `cd /root; stat -c '%n %u %g %a %h %s' file link hole; cat file; readlink soft
	test -e /etc/issue || echo removed; ls /usr/share/doc; ls /usr/bin | wc -l; find /etc /var/lib/dpkg -type f | sort | xargs stat -c '%n %s %a %u %Y' |
	grep -v 'machine-id\|host\|resolv.conf\|random-seed' | md5sum`

func shows(m *machine.Machine, zone string) string {
	m.Must("boot", zone)
	defer m.Must("halt", zone)
	return m.Exec(zone, content)
}

func TestSendReceive(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("pool", "create", "plain", "--backend", "dir")
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) { sendReceive(t, m.On(t), root) })
	}
	m.Refused(10, []string{"no such zone"}, "send", "nobody")
	m.Refused(1, []string{"does not begin"}, "receive")
}

func sendReceive(t *testing.T, m *machine.Machine, root string) {
	sendable(m, "origin", root)
	m.Must("clone", "origin", "a") // stands on a layer
	want := shows(m, "a")
	before := m.Zones()["a"]

	// Beside the original, it is a copy with an identity of its own.
	stream := m.Must("send", "a")
	for _, to := range []string{"tank", "plain"} {
		sent := stream
		if to == "plain" {
			if r := m.TryInput(stream, "receive", "copy", "--pool", to); r.Code != 13 || !strings.Contains(r.Stderr, "--portable") {
				t.Errorf("a btrfs stream into a plain pool: exit code %d, %s", r.Code, r.Stderr)
			}
			sent = m.Must("send", "--portable", "a")
		}
		if r := m.TryInput(sent, "receive", "copy", "--pool", to); r.Code != 0 || r.Stdout != "copy\n" {
			t.Fatalf("receive into %s: exit code %d, %q, %s", to, r.Code, r.Stdout, r.Stderr)
		}
		z := m.Expect("copy", "installed")
		if z.UUID == before.UUID || z.Address == before.Address || z.Pool != to || z.Root != root {
			t.Errorf("copy of %+v: %+v", before, z)
		}
		if got := shows(m, "copy"); got != want {
			t.Errorf("the copy in %s shows\n%s\nwant\n%s", to, got, want)
		}
		m.Must("delete", "copy", "-F")
	}

	// With the original gone, it is the same zone, on the same layers.
	m.Must("delete", "a", "origin", "-F")
	m.Tidy("tank")
	if r := m.TryInput(stream[:len(stream)/2], "receive"); r.Code != 1 || !strings.Contains(r.Stderr, "ends early") {
		t.Errorf("half a stream: exit code %d, %s", r.Code, r.Stderr)
	}
	damaged := []byte(stream)
	damaged[len(damaged)-len(damaged)/4] ^= 1
	if r := m.TryInput(string(damaged), "receive"); r.Code != 1 || !strings.Contains(r.Stderr, "damaged") {
		t.Errorf("a damaged stream: exit code %d, %s", r.Code, r.Stderr)
	}
	if left := m.Names(); len(left) > 0 {
		t.Errorf("bad streams made %v", left)
	}
	m.Tidy("tank")
	if r := m.TryInput(stream, "receive"); r.Code != 0 || r.Stdout != "a\n" {
		t.Fatalf("receive: exit code %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	after := m.Expect("a", "installed")
	if after.UUID != before.UUID || after.Address != before.Address || after.Layers != before.Layers {
		t.Errorf("%+v became %+v", before, after)
	}
	if got := shows(m, "a"); got != want {
		t.Errorf("the zone shows\n%s\nwant\n%s", got, want)
	}
	if got := strings.TrimSpace(m.Must("config", "show", "a", "max-lwps")); !strings.Contains(got, "321") {
		t.Errorf("its max-lwps is %q", got)
	}
	m.Must("delete", "a", "-F")
	m.Tidy("tank")
	m.Tidy("plain")
}

// A zone goes to another home with all it stands on.
func TestSendToAnotherHome(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	sendable(m, "a", "sparse")
	m.Must("boot", "a")
	m.Exec("a", "echo running >/root/running; sync")
	m.Must("snapshot", "a@s")
	m.Exec("a", "echo later >/root/running; sync")
	want := m.Exec("a", content)
	before := m.Zones()["a"]
	stream := m.Must("send", "a@s")

	other := machine.New(t)
	if r := other.TryInput(stream, "receive"); r.Code != 0 {
		t.Fatalf("receive: exit code %d, %s", r.Code, r.Stderr)
	}
	if z := other.Expect("a", "installed"); z.UUID != before.UUID || z.Image != "base@1" {
		t.Errorf("%+v", z)
	}
	other.Must("boot", "a")
	if got := other.Exec("a", content); got != want {
		t.Errorf("the zone shows\n%s\nwant\n%s", got, want)
	}
	if got := other.Exec("a", "cat /root/running"); got != "running" {
		t.Errorf("at the snapshot the file held %q", got)
	}
	other.Must("delete", "a", "-F")
	other.Must("image", "delete", "base", "-F")
}

// A zone changes pools with its past, and is the same zone there.
func TestMove(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("pool", "create", "plain", "--backend", "dir")
	m.Must("pool", "create", "second", "--size", "2G")
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) { move(t, m.On(t), root) })
	}
}

func move(t *testing.T, m *machine.Machine, root string) {
	sendable(m, "origin", root)
	m.Must("clone", "origin", "a")
	m.Must("delete", "origin", "-F")
	m.Must("snapshot", "a@s")
	m.Must("be", "create", "-z", "a", "b")
	want := shows(m, "a")
	before := m.Zones()["a"]
	m.Must("boot", "a")
	m.Refused(12, []string{"move a", "running"}, "move", "a", "second")
	m.Refused(10, []string{"nowhere"}, "move", "a", "nowhere")
	m.Must("halt", "a")
	from, way := "tank", []string{"second", "plain", "tank"}
	if root == "whole" {
		way = []string{"plain"} // whole roots are large
	}
	for _, to := range way {
		m.Must("move", "a", to)
		m.Tidy(from)
		after := m.Expect("a", "installed")
		if after.Pool != to || after.UUID != before.UUID || after.Address != before.Address || after.Layers != before.Layers {
			t.Errorf("%+v became %+v", before, after)
		}
		if got := shows(m, "a"); got != want {
			t.Errorf("in %s the zone shows\n%s\nwant\n%s", to, got, want)
		}
		if got := strings.Fields(m.Must("snapshots", "-q")); len(got) != 1 || got[0] != "a@s" {
			t.Errorf("in %s it has the snapshots %q", to, got)
		}
		if got := bootEnvs(t, m, "a"); got != "initial NR, b" {
			t.Errorf("in %s it has the boot environments %q", to, got)
		}
		from = to
	}
	m.Must("rollback", "a@s")
	if got := shows(m, "a"); got != want {
		t.Errorf("rolled back, the zone shows\n%s\nwant\n%s", got, want)
	}
	m.Must("delete", "a", "-F")
	m.Tidy(from)
}
