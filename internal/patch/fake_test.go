package patch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

// fakeZones keeps zones in memory and refuses what real ones refuse: calls
// without the lock, in the wrong state, or for unknown names. A zone's whole
// root is its "version"; its files are an empty directory per zone.
type fakeZones struct {
	dir string

	mu       sync.Mutex // guards zones and all in them
	zones    map[string]*fakeZone
	breaches []string // rules that were broken
	busiest  int      // most zones at work at once
	working  int
	execHook func(zone string, c host.Cmd) error
	after    func() // called after each call that may change a zone
}

type fakeZone struct {
	state   string
	version string // content of the root
	snaps   map[string]string
	locked  bool
	boots   int
	network bool
	cpu     CPU
}

func newFakeZones(t *testing.T, states map[string]string) *fakeZones {
	f := &fakeZones{dir: fastDir(t), zones: map[string]*fakeZone{}}
	for name, state := range states {
		f.zones[name] = &fakeZone{state: state, version: "old", snaps: map[string]string{}}
	}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, b := range f.breaches {
			t.Error(b)
		}
		for name, z := range f.zones {
			if z.locked || z.state == stateMounted {
				t.Errorf("%s is left locked (%v) or mounted (%s)", name, z.locked, z.state)
			}
		}
	})
	return f
}

// copy is what is left of the zones when the tool is killed now.
func (f *fakeZones) copy() *fakeZones {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &fakeZones{dir: f.dir, zones: map[string]*fakeZone{}}
	for name, z := range f.zones {
		n := *z
		n.snaps, n.locked = maps.Clone(z.snaps), false
		c.zones[name] = &n
	}
	return c
}

func (f *fakeZones) zone(op, name string, states ...string) (*fakeZone, error) {
	z, ok := f.zones[name]
	if !ok {
		return nil, errdefs.New(errdefs.NotFound, op, "no zone %s", name)
	}
	if !z.locked && op != "state" {
		f.breaches = append(f.breaches, fmt.Sprintf("%s %s without its lock", op, name))
	}
	for _, s := range states {
		if z.state == s {
			return z, nil
		}
	}
	if len(states) > 0 {
		return nil, errdefs.New(errdefs.WrongState, op+" "+name, "it is %s", z.state)
	}
	return z, nil
}

func (f *fakeZones) do(op, name string, g func(*fakeZone) error, states ...string) error {
	switch op {
	case "state", "cpu", "root", "exec", "has snapshot", "verify":
	default:
		if f.after != nil {
			defer f.after()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	z, err := f.zone(op, name, states...)
	if err != nil {
		return err
	}
	return g(z)
}

func (f *fakeZones) State(_ context.Context, name string) (s string, err error) {
	err = f.do("state", name, func(z *fakeZone) error { s = z.state; return nil })
	return s, err
}

func (f *fakeZones) Lock(_ context.Context, name, op string) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	z, ok := f.zones[name]
	if !ok {
		return nil, errdefs.New(errdefs.NotFound, op, "no zone %s", name)
	}
	if z.locked {
		return nil, errdefs.New(errdefs.Busy, op, "%s is locked", name)
	}
	z.locked = true
	f.working++
	f.busiest = max(f.busiest, f.working)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		z.locked = false
		f.working--
	}, nil
}

// waitForCompany returns when two zones have been at work at once, or after
// the given time.
func (f *fakeZones) waitForCompany(patience time.Duration) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		busiest := f.busiest
		f.mu.Unlock()
		if busiest > 1 {
			return
		}
	}
}

func (f *fakeZones) Snapshot(_ context.Context, name, snap string) error {
	return f.do("snapshot", name, func(z *fakeZone) error {
		if _, ok := z.snaps[snap]; ok {
			return errors.New("exists")
		}
		z.snaps[snap] = z.version
		return nil
	}, stateRunning, stateMounted, stateInstalled)
}

func (f *fakeZones) HasSnapshot(_ context.Context, name, snap string) (has bool, err error) {
	err = f.do("has snapshot", name, func(z *fakeZone) error { _, has = z.snaps[snap]; return nil })
	return has, err
}

func (f *fakeZones) DeleteSnapshot(_ context.Context, name, snap string) error {
	return f.do("delete snapshot", name, func(z *fakeZone) error {
		if _, ok := z.snaps[snap]; !ok {
			return errdefs.New(errdefs.NotFound, "delete snapshot", "none")
		}
		delete(z.snaps, snap)
		return nil
	})
}

func (f *fakeZones) RollbackTo(_ context.Context, name, snap, keepAs string) error {
	return f.do("roll back", name, func(z *fakeZone) error {
		v, ok := z.snaps[snap]
		if _, kept := z.snaps[keepAs]; !ok || kept {
			return fmt.Errorf("snapshot there %v, kept already %v", ok, kept)
		}
		z.snaps[keepAs], z.version = z.version, v
		return nil
	}, stateInstalled)
}

func (f *fakeZones) Boot(_ context.Context, name string) error {
	return f.do("boot", name, func(z *fakeZone) error { z.state = stateRunning; z.boots++; return nil }, stateInstalled)
}

func (f *fakeZones) Halt(_ context.Context, name string) error {
	return f.do("halt", name, func(z *fakeZone) error { z.state = stateInstalled; return nil }, stateRunning, stateInstalled)
}

func (f *fakeZones) Shutdown(ctx context.Context, name string) error { return f.Halt(ctx, name) }

func (f *fakeZones) Mount(_ context.Context, name string, _, network bool) error {
	return f.do("mount", name, func(z *fakeZone) error { z.state, z.network = stateMounted, network; return nil }, stateInstalled)
}

func (f *fakeZones) Unmount(_ context.Context, name string) error {
	return f.do("unmount", name, func(z *fakeZone) error {
		if z.state == stateMounted {
			z.state = stateInstalled
		}
		return nil
	})
}

func (f *fakeZones) Exec(ctx context.Context, name string, c host.Cmd) (host.Result, error) {
	if err := f.do("exec", name, func(*fakeZone) error { return nil }, stateRunning, stateMounted); err != nil {
		return host.Result{ExitCode: -1}, err
	}
	if f.execHook != nil {
		if err := f.execHook(name, c); err != nil {
			return host.Result{ExitCode: 1}, err
		}
	}
	return host.Result{}, ctx.Err()
}

func (f *fakeZones) Root(_ context.Context, name string) (r *host.Root, err error) {
	err = f.do("root", name, func(*fakeZone) error {
		dir := filepath.Join(f.dir, "roots", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		r, err = host.OpenRoot(dir)
		return err
	}, stateRunning, stateMounted)
	return r, err
}

func (f *fakeZones) CPU(_ context.Context, name string) (c CPU, err error) {
	err = f.do("cpu", name, func(z *fakeZone) error {
		z.cpu.Used += time.Millisecond
		z.cpu.HasWaited = true
		c = z.cpu
		return nil
	}, stateRunning, stateMounted)
	return c, err
}

func (f *fakeZones) SharedDir(_ context.Context, name string) (string, error) {
	return filepath.Join(f.dir, "shared", "zones", name), nil
}

func (f *fakeZones) Store(context.Context, string) (string, error) {
	return filepath.Join(f.dir, "shared"), nil
}

// fakeApt is a package manager with one package of one file.
type fakeApt struct {
	f       *fakeZones
	mu      sync.Mutex
	calls   map[string]int
	apply   func(ctx context.Context, zone string) error // in the middle of Apply
	fetch   func() error
	refresh func(zone string) error
	lock    func(zone string) error
}

const debText = "a package file"

var debFile = packages.File{
	URI: "http://mirror.example/a.deb", Name: "a_2_all.deb", Size: int64(len(debText)),
	SHA256: "0c1f2afe4ee27d2c85b6a4dfd5d6db1e3e1ac4c5b8ac4e0ee65fc1a4fd1ef2c2", // set in newFakeApt
}

func (a *fakeApt) count(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[what]++
}

func zoneOf(root *host.Root) string { return filepath.Base(root.Name()) }

func (a *fakeApt) Name() string                               { return "fake" }
func (a *fakeApt) Detect(*host.Root) bool                     { return true }
func (a *fakeApt) Sources(*host.Root) (string, error)         { return "like", nil }
func (a *fakeApt) State(*host.Root) (string, error)           { return "state", nil }
func (a *fakeApt) Ready(context.Context, packages.Zone) error { return nil }
func (a *fakeApt) Clean(context.Context, packages.Zone) error { return nil }

func (a *fakeApt) Lock(_ context.Context, root *host.Root, _ time.Duration) (func(), error) {
	if a.lock != nil {
		if err := a.lock(zoneOf(root)); err != nil {
			return nil, err
		}
	}
	return func() {}, nil
}

func (a *fakeApt) Refresh(_ context.Context, z packages.Zone, dest string) (int64, error) {
	a.count("refresh")
	if a.refresh != nil {
		if err := a.refresh(zoneOf(z.Root)); err != nil {
			return 0, err
		}
	}
	return 1000, errors.Join(os.MkdirAll(dest, 0o755), os.WriteFile(filepath.Join(dest, "Packages"), nil, 0o644))
}

func (a *fakeApt) Index(context.Context, packages.Zone, string) error { return nil }

func (a *fakeApt) Solve(_ context.Context, z packages.Zone, _ packages.Options) (packages.Plan, error) {
	name := zoneOf(z.Root)
	if _, err := os.Stat(filepath.Join(a.f.dir, "shared", "zones", name, "lists", "Packages")); err != nil {
		return packages.Plan{}, err
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if a.f.zones[name].version == "new" {
		return packages.Plan{State: "state"}, nil
	}
	return packages.Plan{
		State: "state", Files: []packages.File{debFile}, Changes: []packages.Change{{Name: "a", Old: "1", New: "2"}},
	}, nil
}

func (a *fakeApt) Fetch(_ context.Context, _ packages.Zone, files []packages.File, keep func(packages.File, io.Reader) error) error {
	for _, f := range files {
		a.count("fetch")
		if a.fetch != nil {
			if err := a.fetch(); err != nil {
				return err
			}
		}
		if err := keep(f, strings.NewReader(debText)); err != nil {
			return err
		}
	}
	return nil
}

func (a *fakeApt) Apply(ctx context.Context, z packages.Zone, _ packages.Plan, quiet bool) error {
	name := zoneOf(z.Root)
	if _, err := os.Stat(filepath.Join(a.f.dir, "shared", "zones", name, "archives", debFile.Name)); err != nil {
		return err
	}
	set := func(v string) error {
		return a.f.do("apply", name, func(fz *fakeZone) error {
			if fz.network && fz.state == stateMounted || quiet != (fz.state == stateMounted) {
				a.f.breaches = append(a.f.breaches, name+": patched with the network, or not as its state wants")
			}
			fz.version = v
			return nil
		}, stateRunning, stateMounted)
	}
	if err := set("half"); err != nil {
		return err
	}
	if a.apply != nil {
		if err := a.apply(ctx, name); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return set("new")
}

func (a *fakeApt) Verify(_ context.Context, z packages.Zone, _ packages.Plan) error {
	return a.f.do("verify", zoneOf(z.Root), func(fz *fakeZone) error {
		if fz.version != "new" {
			return fmt.Errorf("version is %s", fz.version)
		}
		return nil
	}, stateRunning, stateMounted)
}

// fastDir is a temporary directory where putting things on disk costs nothing.
func fastDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "patch-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
