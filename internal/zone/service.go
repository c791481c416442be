// Package zone is the life of zones: their states, the journal that makes
// every change explainable after a crash, and the verbs create, clone, boot,
// halt, snapshot, rollback and delete. Facts (is it running?) come from the
// kernel, intent (what should it be?) from the zone's own dataset. All verbs
// may be called from several goroutines and several processes at once: each
// takes the lock of the zones it concerns.
package zone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/image"
	"zone/internal/network"
	"zone/internal/runtime"
	"zone/internal/storage"
)

// DefaultHome is where state lives unless $ZONE_HOME says otherwise.
const DefaultHome = "/var/lib/zone"

// DefaultPool is the pool that is made when a command needs one and there is
// none.
const DefaultPool = "tank"

// Network is what the life of a zone needs of the network.
type Network interface {
	Allocate(used []netip.Addr) (netip.Addr, error)
	Usable(a netip.Addr) bool
	Attach(ctx context.Context, e network.Endpoint, ns string) error
	Detach(ctx context.Context, hostLink string) error
	ReleaseUnused(ctx context.Context) error
}

// Engine is the OCI runtime.
type Engine interface {
	Create(ctx context.Context, id, bundle string, log *os.File) (pid int, err error)
	Start(ctx context.Context, id, bundle string) error
	Delete(ctx context.Context, id string) error
	Known(id string) bool
	ExecArgv(id string, o runtime.ExecOptions) []string
}

// Service carries out the verbs. Its fields are set once, by cmd/zone or a
// test, and not changed afterwards.
type Service struct {
	Home, Run  string
	Runner     host.Runner
	Pools      *storage.Registry
	Engine     Engine
	Network    Network
	Cgroups    cgroup.Tree
	ResolvConf func() ([]byte, error) // what a zone's /etc/resolv.conf holds
	Init       string                 // the small init for images that have none
	Note       func(format string, args ...any)
	Patience   time.Duration // for who else works on the same zone or pool; 0: a minute
}

// patience is how long a verb waits for another that works on the same zone.
func (s *Service) patience() time.Duration {
	if s.Patience > 0 {
		return s.Patience
	}
	return time.Minute
}

// Place is where a zone is kept.
type Place struct {
	Pool storage.Pool
	Name string
}

func (p Place) dataset(leaf string) string { return path.Join("zones", p.Name, leaf) }
func (p Place) dir() string                { return p.Pool.Path(path.Join("zones", p.Name)) }
func (p Place) active() string             { return p.dataset("active") }
func (p Place) activePath(leaf string) string {
	return filepath.Join(p.Pool.Path(p.active()), leaf)
}

// Places lists all zones of all pools, sorted by name.
func (s *Service) Places(ctx context.Context) ([]Place, error) {
	pools, err := s.openPools(ctx)
	if err != nil {
		return nil, err
	}
	var all []Place
	for _, p := range pools {
		entries, err := os.ReadDir(p.Path("zones"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, Place{p, e.Name()})
		}
	}
	slices.SortFunc(all, func(a, b Place) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Find returns the place of a zone, or an error that names the nearest one.
func (s *Service) Find(ctx context.Context, name string) (Place, error) {
	pools, err := s.openPools(ctx)
	if err != nil {
		return Place{}, err
	}
	if config.ValidName(name) == nil {
		for _, p := range pools {
			if _, err := os.Stat(p.Path(path.Join("zones", name))); err == nil {
				return Place{p, name}, nil
			}
		}
	}
	return Place{}, s.unknown(ctx, name)
}

func (s *Service) unknown(ctx context.Context, name string) error {
	e := errdefs.New(errdefs.NotFound, "zone "+name, "no such zone")
	places, err := s.Places(ctx)
	if err != nil || len(places) == 0 {
		return e.WithHint("zone create NAME --image IMAGE; there are no zones yet")
	}
	names := make([]string, len(places))
	for i, p := range places {
		names[i] = p.Name
	}
	if near := config.Nearest(name, names); near != "" {
		e.Why = fmt.Sprintf("no such zone; the nearest name is %q", near)
	}
	return e.WithHint("zone list -c")
}

// Select turns names and patterns into zone names, in order and without
// repetition; all selects every zone. A name or pattern that matches nothing
// is NotFound.
func (s *Service) Select(ctx context.Context, patterns []string, all bool) ([]string, error) {
	places, err := s.Places(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range places {
		if all {
			names = append(names, p.Name)
		}
	}
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, errdefs.New(errdefs.Usage, "zone "+pattern, "bad pattern; allowed: * ? [a-z]")
		}
		found := false
		for _, p := range places {
			if ok, _ := path.Match(pattern, p.Name); ok {
				found = true
				if !slices.Contains(names, p.Name) {
					names = append(names, p.Name)
				}
			}
		}
		if !found {
			return nil, s.unknown(ctx, pattern)
		}
	}
	return names, nil
}

func (s *Service) openPools(ctx context.Context) ([]storage.Pool, error) {
	names, err := s.Pools.Names()
	if err != nil {
		return nil, err
	}
	pools := make([]storage.Pool, 0, len(names))
	for _, n := range names {
		p, err := s.Pools.Open(ctx, n)
		if err != nil {
			return nil, err
		}
		pools = append(pools, p)
	}
	return pools, nil
}

// Pool opens the named pool; with an empty name the default one, which is made
// when the host has none at all.
func (s *Service) Pool(ctx context.Context, name string) (storage.Pool, error) {
	if name != "" {
		return s.Pools.Open(ctx, name)
	}
	names, err := s.Pools.Names()
	if err != nil {
		return nil, err
	}
	switch {
	case len(names) == 0:
		s.Note("no pool yet: creating %s, a sparse file under %s", DefaultPool, s.Home)
		return s.Pools.Create(ctx, storage.Spec{Name: DefaultPool})
	case slices.Contains(names, DefaultPool):
		return s.Pools.Open(ctx, DefaultPool)
	case len(names) == 1:
		return s.Pools.Open(ctx, names[0])
	}
	return nil, errdefs.New(errdefs.Usage, "choose a pool", "there are several and none is called %s: %s",
		DefaultPool, strings.Join(names, ", ")).WithHint("add --pool NAME")
}

// Images returns the image store of a pool.
func (s *Service) Images(p storage.Pool) *image.Store {
	return &image.Store{Pool: p, Runner: s.Runner}
}

// HomeTag tells one $ZONE_HOME from another in names that all homes of a host
// share: "" for the default home, "-" and eight digits for the others.
func HomeTag(home string) string {
	if home == DefaultHome {
		return ""
	}
	sum := sha256.Sum256([]byte(home))
	return "-" + hex.EncodeToString(sum[:4])
}

// hostLink names the host's end of the zone's link. A zone that was sent to
// another home of the same host may run in both.
func (s *Service) hostLink(r Record) string { return network.HostLink(r.UUID + HomeTag(s.Home)) }

func (s *Service) cgroupBase() string          { return "/zone" + HomeTag(s.Home) }
func (s *Service) cgroupPath(n string) string  { return path.Join(s.cgroupBase(), n) }
func (s *Service) runDir(n string) string      { return filepath.Join(s.Run, "zones", n) }
func (s *Service) logPath(n string) string     { return filepath.Join(s.Home, "log", n+".log") }
func (s *Service) group(n string) cgroup.Group { return s.Cgroups.Group(s.cgroupPath(n)) }
