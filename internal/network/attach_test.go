package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
)

func requireRoot(t *testing.T) {
	t.Helper()
	hosttest.Require(t, hosttest.Root, hosttest.Network, hosttest.Tool("nft"))
}

// open returns a network of a new home. When the test ends, nothing of it may
// be left.
func open(t *testing.T) *Network {
	t.Helper()
	n, err := Open(t.TempDir(), t.TempDir(), host.Exec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		links, err := n.Links(context.Background())
		for _, l := range links {
			err = errors.Join(err, n.Detach(context.Background(), l))
		}
		if err := errors.Join(err, n.ReleaseUnused(context.Background())); err != nil {
			t.Error(err)
		}
		nothingLeft(t, n)
	})
	return n
}

func nothingLeft(t *testing.T, n *Network) {
	t.Helper()
	if _, err := netlink.LinkByName(n.Name); !isGone(err) {
		t.Errorf("bridge %s is left: %v", n.Name, err)
	}
	if there, err := tableExists(tableName(n.Name)); there || err != nil {
		t.Errorf("rules of %s are left: %v, %v", n.Name, there, err)
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil || bytes.Contains(out, []byte(n.Name)) {
		t.Errorf("ruleset mentions %s: %v\n%s", n.Name, err, out)
	}
}

// process starts a process with a network namespace of its own.
func process(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// inside runs f on a thread in the network namespace of pid.
func inside(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with f
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot end; hold it while another one does it.
			done <- inside(pid, f)
			runtime.UnlockOSThread()
			return
		}
		ns, err := netns.GetFromPid(pid)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// listen accepts TCP connections at addr in the namespace of pid (0: here) and
// answers each with the address it comes from. It returns the port.
func listen(t *testing.T, pid int, addr string) string {
	t.Helper()
	var l net.Listener
	make := func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(addr, "0"))
		return err
	}
	var err error
	if pid == 0 {
		err = make()
	} else {
		err = inside(pid, make)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, from)
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// dial connects from the namespace of pid and returns what the listener said.
// The socket is made directly, since package net may connect on any thread.
func dial(pid int, addr, port string, wait time.Duration) (from string, err error) {
	err = inside(pid, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(wait.Nanoseconds())
		for _, opt := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &tv); err != nil {
				return err
			}
		}
		to := netip.MustParseAddrPort(net.JoinHostPort(addr, port))
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
			return fmt.Errorf("connect %s: %w", to, err)
		}
		buf := make([]byte, 64)
		k, err := unix.Read(fd, buf)
		from = string(buf[:max(k, 0)])
		return err
	})
	return from, err
}

func endpoint(n *Network, t *testing.T, i int) Endpoint {
	t.Helper()
	uuid := fmt.Sprintf("%s-%d", n.Name, i)
	a := n.Gateway()
	for range i {
		a = a.Next()
	}
	return Endpoint{Zone: fmt.Sprintf("web%d", i), HostLink: HostLink(uuid), MAC: MAC(uuid), Addr: a}
}

func TestAttachConnects(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	pids, ends := []int{process(t), process(t)}, []Endpoint{endpoint(n, t, 1), endpoint(n, t, 2)}
	for i := range pids {
		start := time.Now()
		if err := n.Attach(ctx, ends[i], ofProcess(pids[i])); err != nil {
			t.Fatal(err)
		}
		t.Logf("attach %d took %v", i, time.Since(start))
	}
	a, b, gw := ends[0].Addr.String(), ends[1].Addr.String(), n.Gateway().String()

	gwPort, aPort, bPort := listen(t, 0, gw), listen(t, pids[0], a), listen(t, pids[1], b)
	for _, c := range []struct {
		name     string
		pid      int
		to, port string
		want     string
	}{
		{"zone to gateway", pids[0], gw, gwPort, a},
		{"zone to zone", pids[0], b, bPort, a},
		{"and back", pids[1], a, aPort, b},
		{"host to zone", os.Getpid(), b, bPort, gw},
	} {
		start := time.Now()
		from, err := dial(c.pid, c.to, c.port, 5*time.Second)
		t.Logf("%s: %v", c.name, time.Since(start))
		if err != nil || from != c.want {
			t.Errorf("%s: seen from %q, %v; want %s", c.name, from, err, c.want)
		}
	}
	if err := inside(pids[0], func() error { return checkInside(n, ends[0]) }); err != nil {
		t.Error(err)
	}
	links, err := n.Links(ctx)
	want := []string{ends[0].HostLink, ends[1].HostLink}
	slices.Sort(want)
	if err != nil || !slices.Equal(links, want) {
		t.Errorf("links %v, %v; want %v", links, err, want)
	}
}

// checkInside compares a zone's links with what the endpoint asked for.
func checkInside(n *Network, e Endpoint) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil || lo.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("loopback is not up: %v", err)
	}
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	if got := link.Attrs().HardwareAddr.String(); got != e.MAC.String() {
		return fmt.Errorf("MAC address %s, want %s", got, e.MAC)
	}
	have, err := prefixesOf(h, link)
	if err != nil || !slices.Equal(have, []netip.Prefix{netip.PrefixFrom(e.Addr, n.Subnet.Bits())}) {
		return fmt.Errorf("addresses %v, %v", have, err)
	}
	return nil
}

func TestAttachManyAtOnce(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	const count = 16
	pids := make([]int, count)
	for i := range pids {
		pids[i] = process(t)
	}
	// A second process has its own Network and meets the first at the lock file.
	other := &Network{Name: n.Name, Subnet: n.Subnet, Run: n.Run, Runner: n.Runner}
	start := time.Now()
	each(t, count, func(i int) error {
		return []*Network{n, other}[i%2].Attach(ctx, endpoint(n, t, i+1), ofProcess(pids[i]))
	})
	t.Logf("%d attached in %v", count, time.Since(start))
	port := listen(t, 0, n.Gateway().String())
	each(t, count, func(i int) error {
		_, err := dial(pids[i], n.Gateway().String(), port, 5*time.Second)
		return err
	})
	if err := n.ReleaseUnused(ctx); err != nil {
		t.Fatal(err)
	}
	if links, err := n.Links(ctx); err != nil || len(links) != count {
		t.Fatalf("a release while in use left links %v, %v", links, err)
	}
	start = time.Now()
	each(t, count, func(i int) error {
		return errors.Join(n.Detach(ctx, endpoint(n, t, i+1).HostLink), n.ReleaseUnused(ctx))
	})
	t.Logf("%d detached and released in %v", count, time.Since(start))
	nothingLeft(t, n)
}

// Zones come and go while others look whether the bridge can go.
func TestAttachAgainstRelease(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	pids := []int{process(t), process(t), process(t), process(t)}
	port := listen(t, 0, "0.0.0.0")
	each(t, len(pids), func(i int) error {
		e := endpoint(n, t, i+1)
		for range 5 {
			if err := n.Attach(ctx, e, ofProcess(pids[i])); err != nil {
				return err
			}
			// A first packet lost would be sent again after a second only.
			if _, err := dial(pids[i], n.Gateway().String(), port, 900*time.Millisecond); err != nil {
				return err
			}
			if err := errors.Join(n.Detach(ctx, e.HostLink), n.ReleaseUnused(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
	nothingLeft(t, n)
}

func each(t *testing.T, count int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if err := f(i); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func TestAttachMends(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	e := endpoint(n, t, 1)
	if err := n.Attach(ctx, e, ofProcess(process(t))); err != nil {
		t.Fatal(err)
	}
	bridge, err := netlink.LinkByName(n.Name)
	if err != nil {
		t.Fatal(err)
	}
	// The link of a crashed zone is there, the rules and the address are not.
	if out, err := exec.Command("nft", "delete", "table", "inet", tableName(n.Name)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := netlink.AddrDel(bridge, &netlink.Addr{IPNet: ipNet(n.gatewayPrefix())}); err != nil {
		t.Fatal(err)
	}
	pid := process(t)
	if err := n.Attach(ctx, e, ofProcess(pid)); err != nil {
		t.Fatal(err)
	}
	if there, err := tableExists(tableName(n.Name)); !there || err != nil {
		t.Errorf("rules are not back: %v", err)
	}
	port := listen(t, 0, n.Gateway().String())
	if _, err := dial(pid, n.Gateway().String(), port, 5*time.Second); err != nil {
		t.Error(err)
	}
	// Twice into one namespace under another name cannot work, and leaves the
	// first link alone.
	e2 := endpoint(n, t, 2)
	if err := n.Attach(ctx, e2, ofProcess(pid)); err == nil || !strings.Contains(err.Error(), "has an eth0 already") {
		t.Errorf("second eth0: %v", err)
	}
	if links, err := n.Links(ctx); err != nil || !slices.Equal(links, []string{e.HostLink}) {
		t.Errorf("links %v, %v", links, err)
	}
}

// A call killed after its first step left a bare bridge.
func TestAttachCompletesBridge(t *testing.T) {
	requireRoot(t)
	n := open(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = n.Name, MAC(n.Name)
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	pid := process(t)
	if err := n.Attach(context.Background(), endpoint(n, t, 1), ofProcess(pid)); err != nil {
		t.Fatal(err)
	}
	port := listen(t, 0, n.Gateway().String())
	if _, err := dial(pid, n.Gateway().String(), port, 5*time.Second); err != nil {
		t.Error(err)
	}
}

// The last step inside the namespace fails: the link made before must go.
func TestAttachUndoes(t *testing.T) {
	requireRoot(t)
	n, ctx, pid := open(t), context.Background(), process(t)
	err := inside(pid, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		everywhere := ipNet(netip.MustParsePrefix("0.0.0.0/0"))
		return errors.Join(netlink.LinkSetUp(lo), netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: everywhere, Scope: netlink.SCOPE_LINK,
		}))
	})
	if err != nil {
		t.Fatal(err)
	}
	e := endpoint(n, t, 1)
	if err := n.Attach(ctx, e, ofProcess(pid)); err == nil || !strings.Contains(err.Error(), "add default route") {
		t.Fatalf("got %v, want a failure of the default route", err)
	}
	if _, err := netlink.LinkByName(e.HostLink); !isGone(err) {
		t.Errorf("link %s is left: %v", e.HostLink, err)
	}
}

func TestDetachGone(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	if err := n.Detach(ctx, HostLink("never attached")); err != nil {
		t.Error(err)
	}
	if err := n.ReleaseUnused(ctx); err != nil {
		t.Error(err)
	}
	if err := n.Detach(ctx, "lo"); err == nil {
		t.Error("a link that is no veth was deleted")
	}
}

func TestAttachRefuses(t *testing.T) {
	requireRoot(t)
	n, ctx := open(t), context.Background()
	e := endpoint(n, t, 1)
	if err := n.Attach(ctx, e, ofProcess(os.Getpid())); err == nil || !strings.Contains(err.Error(), "the host's own network namespace") {
		t.Errorf("the host's own namespace: %v", err)
	}
	if err := n.Attach(ctx, e, ofProcess(1<<22+1)); err == nil {
		t.Error("a process that does not exist was attached")
	}
	e.Addr = n.Gateway()
	if err := n.Attach(ctx, e, ofProcess(process(t))); !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("the gateway's address: %v", err)
	}
}

// ofProcess is the path of a process's network namespace.
func ofProcess(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }
