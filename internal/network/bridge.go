package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

const (
	defaultMTU = 1500
	// ipForward belongs to the network namespace of the thread that opens it.
	ipForward = "/proc/sys/net/ipv4/ip_forward"
)

// ensureBridge returns the bridge, up and with the gateway's address, making
// what is missing. The link is set up last: a bridge that is up is complete but
// for what an administrator has taken away since.
//
// Its MAC address is derived from its name. Without a fixed one it would change
// with each port, and zones would lose their gateway for a moment; and it tells
// our bridge from another program's of the same name. A spanning tree is off as
// in each new bridge, so a port forwards from its first moment.
func (n *Network) ensureBridge(ctx context.Context, h *netlink.Handle) (netlink.Link, error) {
	link, err := h.LinkByName(n.Name)
	if isGone(err) {
		return n.makeBridge(ctx, h, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("look up bridge %s: %w", n.Name, err)
	}
	if !isOurs(link, n.Name) {
		return nil, errdefs.New(errdefs.Busy, "set up bridge "+n.Name,
			"a %s of that name exists and is not ours", link.Type()).
			WithHint("remove it, or change \"bridge\" in network.json of the home directory")
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return n.makeBridge(ctx, h, link)
	}
	have, err := prefixesOf(h, link)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(have, n.gatewayPrefix()) {
		return n.makeBridge(ctx, h, link)
	}
	return link, nil
}

// makeBridge creates the bridge, or completes the one it is given.
func (n *Network) makeBridge(ctx context.Context, h *netlink.Handle, link netlink.Link) (netlink.Link, error) {
	lock, err := host.WaitLock(ctx, machineLock, lockWait)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	if err := n.checkSubnet(h, link); err != nil {
		return nil, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = n.Name, MAC(n.Name)
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("create bridge %s: %w", n.Name, err)
		}
		if link, err = h.LinkByName(n.Name); err != nil {
			return nil, fmt.Errorf("look up bridge %s: %w", n.Name, err)
		}
	}
	mtu, err := uplinkMTU(h)
	if err != nil {
		return nil, err
	}
	// Set by a request of its own: only then does the bridge keep it when ports
	// come and go.
	err = h.LinkSetMTU(link, mtu)
	if err == nil {
		err = h.AddrReplace(link, &netlink.Addr{IPNet: ipNet(n.gatewayPrefix())})
	}
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("set up bridge %s: %w", n.Name, err)
	}
	return h.LinkByName(n.Name)
}

// checkSubnet refuses to bring up a subnet that meanwhile belongs to somebody
// else on this host.
func (n *Network) checkSubnet(h *netlink.Handle, bridge netlink.Link) error {
	except := 0
	if bridge != nil {
		except = bridge.Attrs().Index
	}
	taken, err := takenPrefixes(h, except)
	if err != nil {
		return err
	}
	if p, over := overlapping(n.Subnet, taken); over {
		return errdefs.New(errdefs.Busy, "set up bridge "+n.Name,
			"its subnet %s overlaps %s, an address or route of this host", n.Subnet, p).
			WithHint("remove network.json of the home directory: zones get new addresses at their next boot")
	}
	return nil
}

// uplinkMTU returns the smallest MTU of the links and routes that lead to
// everywhere, so that what a zone sends fits wherever it goes.
func uplinkMTU(h *netlink.Handle) (int, error) {
	routes, err := dump(func() ([]netlink.Route, error) { return h.RouteList(nil, unix.AF_INET) })
	if err != nil {
		return 0, fmt.Errorf("list routes: %w", err)
	}
	mtu := 0
	consider := func(m int) {
		if m > 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && p.Bits() > 0 {
			continue
		}
		consider(r.MTU)
		hops := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			hops = append(hops, hop.LinkIndex)
		}
		for _, index := range hops {
			if link, err := h.LinkByIndex(index); err == nil {
				consider(link.Attrs().MTU)
			}
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	return mtu, nil
}

// ensureForwarding lets the kernel route packets. It stays on when the last
// zone is gone: by then somebody else may count on it.
func ensureForwarding() error {
	on, err := os.ReadFile(ipForward)
	if err != nil || bytes.Equal(bytes.TrimSpace(on), []byte("1")) {
		return err
	}
	if err := os.WriteFile(ipForward, []byte("1\n"), 0o644); err != nil {
		return fmt.Errorf("turn on routing: %w", err)
	}
	on, err = os.ReadFile(ipForward)
	if err == nil && !bytes.Equal(bytes.TrimSpace(on), []byte("1")) {
		err = fmt.Errorf("turn on routing: %s stays %q", ipForward, bytes.TrimSpace(on))
	}
	return err
}

// ReleaseUnused removes the bridge and its rules when no zone is attached, and
// does nothing otherwise.
func (n *Network) ReleaseUnused(ctx context.Context) error {
	return n.locked(ctx, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(n.Name)
		switch {
		case isGone(err): // the rules may be left from an interrupted release
		case err != nil:
			return fmt.Errorf("look up bridge %s: %w", n.Name, err)
		case !isOurs(link, n.Name):
			return nil
		default:
			ports, err := ports(h, link)
			if err != nil || len(ports) > 0 {
				return err
			}
			if err := h.LinkDel(link); err != nil && !isGone(err) {
				return fmt.Errorf("delete bridge %s: %w", n.Name, err)
			}
		}
		return n.removeRules(ctx)
	})
}

// ports returns the names of the links that are ports of the bridge.
func ports(h *netlink.Handle, bridge netlink.Link) ([]string, error) {
	links, err := dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list ports of %s: %w", bridge.Attrs().Name, err)
	}
	var names []string
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

func isOurs(link netlink.Link, name string) bool {
	return link.Type() == "bridge" && bytes.Equal(link.Attrs().HardwareAddr, MAC(name))
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

func (n *Network) gatewayPrefix() netip.Prefix {
	return netip.PrefixFrom(n.Gateway(), n.Subnet.Bits())
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
