package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

const subnetBits = 20

// candidates are the subnets a home may get: the /20 networks of 10.213 to
// 10.220, and of 172.30 for hosts that have a route to all of 10/8.
func candidates() []netip.Prefix {
	var all []netip.Prefix
	add := func(a, b byte) {
		for c := 0; c < 256; c += 1 << (24 - subnetBits) {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b, byte(c), 0}), subnetBits))
		}
	}
	for b := byte(213); b <= 220; b++ {
		add(10, b)
	}
	add(172, 30)
	return all
}

// chooseSubnet returns the first candidate that overlaps nothing taken,
// beginning at index start (taken modulo their number) and going round.
func chooseSubnet(start int, taken []netip.Prefix) (netip.Prefix, error) {
	all := candidates()
	for i := range all {
		c := all[(start+i)%len(all)]
		if _, over := overlapping(c, taken); !over {
			return c, nil
		}
	}
	return netip.Prefix{}, errdefs.New(errdefs.Failed, "choose network",
		"each subnet from %s to %s overlaps an address or route of this host", all[0], all[len(all)-1]).
		WithHint(`write {"bridge": "zone0", "subnet": "A.B.C.0/20"} to network.json in the home directory`)
}

func overlapping(p netip.Prefix, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, t := range taken {
		if t.Overlaps(p) {
			return t, true
		}
	}
	return netip.Prefix{}, false
}

// Allocate returns the lowest address of the subnet that is neither used, nor
// the gateway, the network or the broadcast address. Addresses of used that
// lie outside of the subnet do not matter.
func (n *Network) Allocate(used []netip.Addr) (netip.Addr, error) {
	taken := make(map[netip.Addr]bool, len(used))
	for _, a := range used {
		taken[a.Unmap()] = true
	}
	for a := n.Gateway().Next(); n.Usable(a); a = a.Next() {
		if !taken[a] {
			return a, nil
		}
	}
	return netip.Addr{}, errdefs.New(errdefs.Failed, "allocate address",
		"all %d addresses of %s are in use", 1<<(32-n.Subnet.Bits())-3, n.Subnet).
		WithHint("delete a zone that is no longer needed")
}

// Usable reports whether a zone may have the address.
func (n *Network) Usable(a netip.Addr) bool {
	return n.Subnet.Contains(a) && n.Subnet.Contains(a.Next()) && a.Compare(n.Gateway()) > 0
}

// takenPrefixes lists what addresses and routes of this host cover, but for
// the link with index except. Routes wider than 8 bits are ways to everywhere
// (the default route, or the halves a VPN splits it into), not networks.
func takenPrefixes(h *netlink.Handle, except int) ([]netip.Prefix, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(unix.AF_INET, every, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var taken []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && a.LinkIndex != except {
			taken = append(taken, p)
		}
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && r.LinkIndex != except && p.Bits() >= 8 {
			taken = append(taken, p)
		}
	}
	return taken, nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

func prefixesOf(h *netlink.Handle, link netlink.Link) ([]netip.Prefix, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(link, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var all []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// dump repeats a listing that the kernel says was changed under our feet. The
// last attempt's answer is taken as it is: on a host that changes all the time
// a list that misses the newest entry is better than none.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range 10 {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil
	}
	return all, err
}
