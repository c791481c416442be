package network

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

const (
	testUplink = "203.0.113.1"
	testRemote = "203.0.113.2"
)

// asHost runs f on a thread that stands for a host: in a network namespace of
// its own, without routing, with a default route over a link of MTU 1400 to
// the process remote. f must not start goroutines that need the namespace.
func asHost(t *testing.T, remote int, f func() error) {
	t.Helper()
	err := inside(process(t), func() error {
		if err := os.WriteFile(ipForward, []byte("0"), 0o644); err != nil {
			return err
		}
		ns, err := netns.GetFromPid(remote)
		if err != nil {
			return err
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "up0", 1400
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = "out0", netlink.NsFd(ns)
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := setUp("up0", testUplink, testRemote); err != nil {
			return err
		}
		if err := inside(remote, func() error { return setUp("out0", testRemote, "") }); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func setUp(name, addr, gateway string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	p := netip.PrefixFrom(netip.MustParseAddr(addr), 24)
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if gateway == "" {
		return nil
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)})
}

// The remote has no way back to the zone's subnet: an answer proves that the
// zone's packets bear the host's address. Given a way, it still gets no
// connection into the zone.
func TestMasquerade(t *testing.T) {
	requireRoot(t)
	ctx, remote, zone := context.Background(), process(t), process(t)
	asHost(t, remote, func() error {
		n, err := Open(t.TempDir(), t.TempDir(), host.Exec{})
		if err != nil {
			return err
		}
		e := endpoint(n, t, 1)
		if err := n.Attach(ctx, e, ofProcess(zone)); err != nil {
			return err
		}
		if on, err := os.ReadFile(ipForward); err != nil || string(on) != "1\n" {
			t.Errorf("routing is %q, %v", on, err)
		}
		from, err := dial(zone, testRemote, listen(t, remote, testRemote), 5*time.Second)
		if err != nil || from != testUplink {
			t.Errorf("seen from %q, %v; want %s", from, err, testUplink)
		}
		err = inside(remote, func() error {
			return netlink.RouteAdd(&netlink.Route{Dst: ipNet(n.Subnet), Gw: net.ParseIP(testUplink)})
		})
		if err != nil {
			return err
		}
		if from, err := dial(remote, e.Addr.String(), listen(t, zone, e.Addr.String()), 300*time.Millisecond); err == nil {
			t.Errorf("the outside connected to the zone from %s", from)
		}
		return nil
	})
}

// The MTU is the uplink's and stays so when the last zone leaves.
func TestMTU(t *testing.T) {
	requireRoot(t)
	ctx, remote, zone := context.Background(), process(t), process(t)
	asHost(t, remote, func() error {
		n, err := Open(t.TempDir(), t.TempDir(), host.Exec{})
		if err != nil {
			return err
		}
		e := endpoint(n, t, 1)
		for range 2 {
			if err := n.Attach(ctx, e, ofProcess(zone)); err != nil {
				return err
			}
			err := inside(zone, func() error {
				link, err := netlink.LinkByName("eth0")
				if err == nil && link.Attrs().MTU != 1400 {
					t.Errorf("MTU %d, want 1400", link.Attrs().MTU)
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := n.Detach(ctx, e.HostLink); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestHomesDoNotCollide(t *testing.T) {
	requireRoot(t)
	ctx := context.Background()
	asHost(t, process(t), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		first, err := Open(t.TempDir(), t.TempDir(), host.Exec{})
		if err != nil {
			return err
		}
		second := &Network{Name: "zn-second", Subnet: first.Subnet, Run: t.TempDir(), Runner: host.Exec{}}
		if err := first.Attach(ctx, endpoint(first, t, 1), ofProcess(process(t))); err != nil {
			return err
		}
		taken, err := takenPrefixes(h, 0)
		if err != nil {
			return err
		}
		if _, over := overlapping(first.Subnet, taken); !over {
			t.Errorf("%s is not seen as taken: %v", first.Subnet, taken)
		}
		err = second.Attach(ctx, endpoint(second, t, 2), ofProcess(process(t)))
		if !errdefs.Is(err, errdefs.Busy) || errdefs.HintOf(err) == "" {
			t.Errorf("an overlapping subnet: %v", err)
		}
		// A bridge of that name that somebody else made is left alone.
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "zn-third"
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		third := &Network{Name: "zn-third", Subnet: netip.MustParsePrefix("10.9.0.0/24"), Run: t.TempDir(), Runner: host.Exec{}}
		if err := third.Attach(ctx, endpoint(third, t, 3), ofProcess(process(t))); !errdefs.Is(err, errdefs.Busy) {
			t.Errorf("another program's bridge: %v", err)
		}
		if err := third.ReleaseUnused(ctx); err != nil {
			t.Error(err)
		}
		if _, err := h.LinkByName("zn-third"); err != nil {
			t.Errorf("another program's bridge: %v", err)
		}
		return nil
	})
}

func TestOpenKeepsChoice(t *testing.T) {
	requireRoot(t)
	home := t.TempDir()
	a, err := Open(home, t.TempDir(), host.Exec{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(home, t.TempDir(), host.Exec{})
	if err != nil || a.Name != b.Name || a.Subnet != b.Subnet {
		t.Errorf("first %s %s, then %s %s, %v", a.Name, a.Subnet, b.Name, b.Subnet, err)
	}
}
