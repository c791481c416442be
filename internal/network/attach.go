package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

const (
	insideName     = "eth0"
	hostLinkPrefix = "zv"

	// upWait is far above the second that the kernel may take at worst.
	upWait = 10 * time.Second
)

// Endpoint is one zone's connection.
type Endpoint struct {
	Zone     string           // for messages only
	HostLink string           // name of the host's end, see HostLink
	MAC      net.HardwareAddr // of the zone's end, see MAC
	Addr     netip.Addr       // of the zone's end, within the subnet
}

// MAC returns the MAC address of the zone with this uuid: always the same,
// locally administered, unicast.
func MAC(uuid string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("mac " + uuid))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// HostLink returns the name of the host's end of the link of the zone with
// this uuid: "zv" and 10 hexadecimal digits.
func HostLink(uuid string) string {
	sum := sha256.Sum256([]byte(uuid))
	return hostLinkPrefix + hex.EncodeToString(sum[:5])
}

// Attach connects the network namespace at path ns: it gets an eth0
// with the endpoint's addresses, a default route through the bridge and a
// loopback that is up. The bridge and the rules are made when missing. A host
// link of that name, left by a crash, is replaced. When Attach fails the
// namespace has no link; the bridge may stay, ReleaseUnused removes it.
//
// An address outside of the subnet is refused with kind WrongState: the home
// has got another subnet since the zone got its address; allocate a new one. A
// subnet that is in use by somebody else on this host is kind Busy.
func (n *Network) Attach(ctx context.Context, e Endpoint, ns string) error {
	if err := n.attach(ctx, e, ns); err != nil {
		return fmt.Errorf("attach %s to network: %w", e.Zone, err)
	}
	return nil
}

func (n *Network) attach(ctx context.Context, e Endpoint, path string) error {
	if !n.Usable(e.Addr) {
		return errdefs.New(errdefs.WrongState, "address "+e.Addr.String(), "not an address for zones in %s", n.Subnet)
	}
	ns, err := foreignNamespace(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()

	var port netlink.Link
	err = n.locked(ctx, func() error {
		port, err = n.plug(ctx, h, e, ns)
		return err
	})
	if err != nil {
		return err
	}
	// From here on the port keeps the bridge in use, no lock is needed.
	err = n.configure(ctx, ns, e)
	if err == nil {
		err = waitUp(ctx, h, e.HostLink, n.Name)
	}
	if err != nil {
		return errors.Join(err, deleteLink(h, port))
	}
	return nil
}

// waitUp waits until the links carry packets. The kernel turns a link on some
// time after its other end is set up; what a program sends before is lost, and
// it would try again only after a second.
func waitUp(ctx context.Context, h *netlink.Handle, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, upWait)
	defer cancel()
	pause := 100 * time.Microsecond
	for len(names) > 0 {
		link, err := h.LinkByName(names[0])
		if err != nil {
			return fmt.Errorf("look up link %s: %w", names[0], err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			names = names[1:]
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for link %s to come up: %w", names[0], ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
	return nil
}

// foreignNamespace opens a network namespace, which must not be our own: else
// we would give the host itself a zone's address and routes.
func foreignNamespace(path string) (netns.NsHandle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return ns, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	own, err := netns.Get()
	if err != nil {
		ns.Close()
		return ns, fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	if ns.Equal(own) {
		ns.Close()
		return ns, fmt.Errorf("%s is the host's own network namespace", path)
	}
	return ns, nil
}

// plug makes the veth pair, one end a port of the bridge, the other in ns.
func (n *Network) plug(ctx context.Context, h *netlink.Handle, e Endpoint, ns netns.NsHandle) (netlink.Link, error) {
	bridge, err := n.ensureBridge(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := ensureForwarding(); err != nil {
		return nil, err
	}
	if err := n.ensureRules(ctx); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = e.HostLink, MAC(e.HostLink)
	attrs.MTU, attrs.Flags = bridge.Attrs().MTU, net.FlagUp
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = insideName, e.MAC, netlink.NsFd(ns)
	veth.PeerMTU = uint32(bridge.Attrs().MTU)

	err = h.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		if err := removeLink(h, e.HostLink); err != nil {
			return nil, err
		}
		err = h.LinkAdd(veth)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("create link %s: the namespace has an %s already", e.HostLink, insideName)
	}
	if err != nil {
		return nil, fmt.Errorf("create link %s: %w", e.HostLink, err)
	}
	if err := h.LinkSetMaster(veth, bridge); err != nil {
		return nil, errors.Join(fmt.Errorf("make %s a port of %s: %w", e.HostLink, n.Name, err), deleteLink(h, veth))
	}
	return veth, nil
}

// configure sets up the links inside the namespace.
func (n *Network) configure(ctx context.Context, ns netns.NsHandle, e Endpoint) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	link, err := h.LinkByName(insideName)
	if err != nil {
		return fmt.Errorf("look up %s: %w", insideName, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(e.Addr, n.Subnet.Bits()))}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %s: %w", addr, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s: %w", insideName, err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: n.Gateway().AsSlice()}
	if err := h.RouteAdd(route); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return waitUp(ctx, h, insideName)
}

// Detach deletes a zone's link, both ends. One that is gone is success.
func (n *Network) Detach(ctx context.Context, hostLink string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return removeLink(h, hostLink)
}

// Links returns the sorted names of the host links that are attached to the
// bridge.
func (n *Network) Links(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	bridge, err := h.LinkByName(n.Name)
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up bridge %s: %w", n.Name, err)
	}
	names, err := ports(h, bridge)
	names = slices.DeleteFunc(names, func(s string) bool { return !strings.HasPrefix(s, hostLinkPrefix) })
	slices.Sort(names)
	return names, err
}

func removeLink(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up link %s: %w", name, err)
	}
	if link.Type() != "veth" {
		return fmt.Errorf("delete link %s: it is a %s, not ours", name, link.Type())
	}
	return deleteLink(h, link)
}

func deleteLink(h *netlink.Handle, link netlink.Link) error {
	if err := h.LinkDel(link); err != nil && !isGone(err) {
		return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
	}
	return nil
}
