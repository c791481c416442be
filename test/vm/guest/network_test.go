package guest

import (
	"net"
	"strings"
	"testing"

	"zone/test/machine"
)

// serve is a program for perl: a TCP server on port 7 in the background that
// tells callers their address.
const serve = `use IO::Socket::INET; $s = IO::Socket::INET->new(Listen => 5, LocalPort => 7, ReuseAddr => 1) or die; ` +
	`exit 0 if fork; close STDIN; close STDOUT; close STDERR; while ($c = $s->accept) { print $c "you are ", $c->peerhost, "\n"; close $c }`

// network lets two zones talk to each other and, with the host's address, to a
// neighbour of the host.
func network(t *testing.T, m *machine.Machine) {
	neighbour(t)
	m.Must("create", "one", "--image", "base")
	m.Must("create", "two", "--image", "base")
	m.Must("boot", "one", "two")
	zones := m.Zones()
	m.Must("exec", "two", "--", "perl", "-e", serve)
	ask := func(address string) string { return m.Exec("one", "bash -c 'cat <>/dev/tcp/"+address+"/7'") }
	if got := ask(zones["two"].Address); got != "you are "+zones["one"].Address {
		t.Errorf("the other zone answers %q", got)
	}
	if got := ask("192.0.2.2"); got != "you are 192.0.2.1" {
		t.Errorf("the host's neighbour answers %q", got)
	}
	if bridges := host(t, "ip", "-o", "link", "show", "type", "bridge"); strings.Count(bridges, "\n") != 1 {
		t.Errorf("bridges while zones run:\n%s", bridges)
	}
	m.Must("halt", "one", "two")
	if left := host(t, "ip", "-o", "link", "show", "type", "bridge") + host(t, "nft", "list", "tables"); strings.TrimSpace(left) != "" {
		t.Errorf("left when no zone runs:\n%s", left)
	}
}

// neighbour makes a network namespace that is to the host what another machine
// on its network is.
func neighbour(t *testing.T) {
	host(t, "ip", "netns", "add", "neighbour")
	t.Cleanup(func() {
		host(t, "sh", "-c", "kill -9 $(ip netns pids neighbour)")
		host(t, "ip", "netns", "del", "neighbour")
	})
	host(t, "ip", "link", "add", "lan0", "type", "veth", "peer", "name", "lan0", "netns", "neighbour")
	host(t, "ip", "addr", "add", "192.0.2.1/24", "dev", "lan0")
	host(t, "ip", "link", "set", "lan0", "up")
	host(t, "ip", "-n", "neighbour", "addr", "add", "192.0.2.2/24", "dev", "lan0")
	host(t, "ip", "-n", "neighbour", "link", "set", "lan0", "up")
	host(t, "ip", "netns", "exec", "neighbour", "perl", "-e", serve)
	if _, err := net.InterfaceByName("lan0"); err != nil {
		t.Fatal(err)
	}
}
