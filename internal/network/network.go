// Package network gives each zone its own IPv4 stack: a veth pair whose one
// end is eth0 in the zone's network namespace and whose other end is a port of
// a bridge, with masquerading towards the outside.
//
// One home (ZONE_HOME) has one bridge and one subnet, recorded in
// HOME/network.json. The bridge and its nftables table exist only while zones
// are attached. Everything but the rules is done over netlink; the rules are
// rendered as text and loaded by nft in one transaction.
//
// The package knows addresses and links, not zones: who has which address is
// kept by the caller. All methods may be called from several goroutines and
// processes at once; a lock in RUN orders what concerns the bridge.
package network

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

const (
	defaultHome   = "/var/lib/zone"
	defaultBridge = "zone0"

	// machineLock is taken by every home while it looks for a free subnet or
	// puts an address on its bridge, so that two homes never take the same.
	machineLock = "/run/zone-network.lock"

	lockWait = 30 * time.Second
)

// Network is the network of one home. Make it with Open; it holds nothing that
// needs closing.
type Network struct {
	Name   string       // name of the bridge, at most 15 characters
	Subnet netip.Prefix // IPv4, masked; the bridge has its first address
	Run    string       // directory of network.lock
	Runner host.Runner  // starts nft

	// mu is taken before the lock file, so that the goroutines of one process
	// wait for each other without polling the file.
	mu sync.Mutex
}

// record is the content of HOME/network.json.
type record struct {
	Bridge string       `json:"bridge"`
	Subnet netip.Prefix `json:"subnet"`
}

// Open reads the network of home, or chooses one and writes it down. The
// subnet chosen overlaps no address and no route of this host. Homes whose
// bridge is not up leave no trace to check against; they start their search at
// different places, and what still collides is refused when the second bridge
// comes up (see Attach).
//
// A record that cannot be used is an *errdefs.Error of kind Usage.
func Open(home, run string, r host.Runner) (*Network, error) {
	path := filepath.Join(home, "network.json")
	rec, err := readRecord(path)
	if errors.Is(err, fs.ErrNotExist) {
		rec, err = choose(home, path)
	}
	if err != nil {
		return nil, err
	}
	return &Network{Name: rec.Bridge, Subnet: rec.Subnet, Run: run, Runner: r}, nil
}

// Gateway returns the address of the bridge, the first of the subnet.
func (n *Network) Gateway() netip.Addr { return n.Subnet.Masked().Addr().Next() }

var bridgeName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]{0,14}$`)

func readRecord(path string) (record, error) {
	var rec record
	if err := host.ReadJSON(path, &rec); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return rec, err
		}
		return rec, errdefs.Wrap(errdefs.Usage, "read network", err)
	}
	return rec, rec.check(path)
}

func (r record) check(path string) error {
	what := "read network " + path
	if !bridgeName.MatchString(r.Bridge) {
		return errdefs.New(errdefs.Usage, what,
			"bridge %q: want a letter, then up to 14 letters, digits, '-' or '_'", r.Bridge)
	}
	s := r.Subnet
	if !s.IsValid() || !s.Addr().Is4() || s.Masked() != s || s.Bits() < 8 || s.Bits() > 29 {
		return errdefs.New(errdefs.Usage, what,
			"subnet %q: want an IPv4 network of 8 to 29 bits, such as 10.213.0.0/20", s)
	}
	return nil
}

// choose picks bridge and subnet for home and writes them to path.
func choose(home, path string) (record, error) {
	lock, err := host.WaitLock(context.Background(), machineLock, lockWait)
	if err != nil {
		return record{}, fmt.Errorf("choose network: %w", err)
	}
	defer lock.Unlock()
	if rec, err := readRecord(path); !errors.Is(err, fs.ErrNotExist) {
		return rec, err // somebody was faster
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return record{}, fmt.Errorf("choose network: %w", err)
	}
	defer h.Close()
	rec, err := chooseFree(h, home)
	if err != nil {
		return rec, err
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return rec, err
	}
	return rec, host.WriteJSON(path, rec, true)
}

func chooseFree(h *netlink.Handle, home string) (record, error) {
	name, start := identity(home)
	rec := record{Bridge: name}
	// A bridge that outlived its record keeps its subnet: zones use it.
	if link, err := h.LinkByName(name); err == nil && isOurs(link, name) {
		addrs, err := prefixesOf(h, link)
		if err == nil && len(addrs) > 0 {
			rec.Subnet = addrs[0].Masked()
			return rec, rec.check("of bridge " + name)
		}
	}
	taken, err := takenPrefixes(h, 0)
	if err != nil {
		return rec, err
	}
	rec.Subnet, err = chooseSubnet(start, taken)
	return rec, err
}

// identity returns the bridge name of a home and where it starts to look for
// a subnet.
func identity(home string) (bridge string, start int) {
	if abs, err := filepath.Abs(home); err == nil {
		home = abs
	}
	if home == defaultHome {
		return defaultBridge, 0
	}
	sum := sha256.Sum256([]byte(home))
	return "zn" + hex.EncodeToString(sum[:4]), int(binary.BigEndian.Uint32(sum[4:8]) >> 1)
}

// locked runs f while no other goroutine or process changes the bridge.
func (n *Network) locked(ctx context.Context, f func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	lock, err := host.WaitLock(ctx, filepath.Join(n.Run, "network.lock"), lockWait)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	return f()
}
