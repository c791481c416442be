package zone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/network"
	"zone/internal/runtime"
)

// SharedMount is where a zone sees, read-only, what the host puts there for it.
const SharedMount = "/run/host/zone"

// Boot starts a zone that is installed, ready or down.
func (s *Service) Boot(ctx context.Context, name string) error {
	l, err := s.lock(ctx, "boot", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	return s.bootLocked(ctx, name)
}

// Ready prepares a zone without starting any process of its own: namespaces,
// mounts, network and limits are there.
func (s *Service) Ready(ctx context.Context, name string) error {
	l, err := s.lock(ctx, "ready", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	return s.start(ctx, "ready", name, startSpec{mode: modeReady, network: true})
}

func (s *Service) bootLocked(ctx context.Context, name string) error {
	if run, err := s.readRunning(name); err == nil && run.alive() && run.Mode == modeReady {
		j, err := s.begin(opBoot, run.Pool, name)
		if err != nil {
			return err
		}
		defer j.end()
		return s.run(ctx, name, &run)
	}
	return s.start(ctx, "boot", name, startSpec{mode: modeBoot, network: true})
}

// startSpec says how a container is to start.
type startSpec struct {
	mode      mode
	network   bool
	netns     string // path of its network namespace, made before the container
	quietSync bool
}

// start takes a zone from installed to the mode of spec. When it fails, all of
// it is taken back.
func (s *Service) start(ctx context.Context, op, name string, spec startSpec) (err error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	if err := s.startable(op, at); err != nil {
		return err
	}
	if err := s.activatePending(ctx, at); err != nil {
		return err
	}
	journaled := opBoot
	if spec.mode == modeScratch {
		journaled = opMount
	}
	j, err := s.begin(journaled, at.Pool.Info().Name, name)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			j.end()
			return
		}
		err = explainFull(op+" "+name, at.Pool, err)
		if undo := s.teardown(context.WithoutCancel(ctx), name); undo != nil {
			err = errors.Join(err, undo)
			j.lock.Unlock() // the next command mends
			return
		}
		j.end()
	}()
	run, err := s.platform(ctx, at, spec)
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, name, err)
	}
	if spec.mode == modeScratch {
		return s.run(ctx, name, run)
	}
	s.makeHostKeys(ctx, name, run.PID)
	if spec.mode == modeReady {
		return nil
	}
	return s.run(ctx, name, run)
}

// startable refuses zones that run already or have nothing to run.
func (s *Service) startable(op string, at Place) error {
	st := s.status(at)
	switch st.State {
	case Installed:
		return nil
	case Down:
		return s.teardown(context.Background(), at.Name)
	case Incomplete, Unavailable:
		return errdefs.New(errdefs.WrongState, op+" "+at.Name, "the zone is %s: %s", st.State, st.Why).
			WithHint("zone delete %s", at.Name)
	}
	return errdefs.New(errdefs.WrongState, op+" "+at.Name, "the zone is %s already", st.State)
}

// run lets the first process go.
func (s *Service) run(ctx context.Context, name string, run *running) error {
	if err := s.Engine.Start(ctx, name, s.bundle(name)); err != nil {
		return fmt.Errorf("boot %s: %w", name, err)
	}
	if run.Mode == modeReady {
		run.Mode = modeBoot
	}
	run.Booted = time.Now()
	return s.writeRunning(name, *run)
}

func (s *Service) bundle(name string) string { return filepath.Join(s.runDir(name), "bundle") }

// platform makes everything that the zone's processes will stand on, in the
// order that keeps races away: root, cgroups and namespaces, links, and a look
// at the limits that the kernel really holds.
func (s *Service) platform(ctx context.Context, at Place, spec startSpec) (*running, error) {
	r, err := readRecord(at.activePath(""))
	if err != nil {
		return nil, err
	}
	z, err := readConfig(at.activePath(""))
	if err != nil {
		return nil, err
	}
	z = z.WithDefaults(at.Name)
	run := &running{
		Mode: spec.mode, Pool: at.Pool.Info().Name, HostLink: s.hostLink(r), Limits: z, Booted: time.Now(),
	}
	spec.network = spec.network && z.Net.IPType != config.IPNone
	attached := func() error { return nil }
	if spec.network {
		run.Address = r.Address
		ns, err := host.NewNetworkNamespace()
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		spec.netns = host.OpenPath(ns)
		attached = s.attach(ctx, at.Name, r, spec.netns)
	}
	err = s.container(ctx, at, r, z, spec, run)
	if err := errors.Join(err, attached()); err != nil {
		return nil, err
	}
	if run.StartTick, _, err = startTick(run.PID); err != nil {
		return nil, fmt.Errorf("its first process ended at once: %w", err)
	}
	if err := s.writeRunning(at.Name, *run); err != nil {
		return nil, err
	}
	return run, errors.Join(s.checkLimits(at.Name, z), s.checkProperties(at.Name, run.PID, z))
}

// attach starts to connect a network namespace, which takes about as long as
// the engine takes to make a container; the function it returns waits for the
// end. A kill in between leaves a link that goes with the namespace.
func (s *Service) attach(ctx context.Context, name string, r Record, ns string) (wait func() error) {
	e := network.Endpoint{Zone: name, HostLink: s.hostLink(r), MAC: network.MAC(r.UUID), Addr: r.Address}
	done := make(chan error, 1)
	go func() { done <- s.Network.Attach(ctx, e, ns) }()
	return func() error { return <-done }
}

// container mounts the root in a mount namespace that only the zone's
// processes keep, and has the engine make the container there.
func (s *Service) container(ctx context.Context, at Place, r Record, z config.Zone, spec startSpec, run *running) error {
	shared, err := s.ensureShared(ctx, at.Pool, at.Name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.logPath(at.Name)), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(s.logPath(at.Name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// Teardown removes the directory that all cgroups of this home share when
	// it is empty; not while a container is being made in it.
	base, err := host.LockShared(ctx, s.platformLock(), s.patience())
	if err != nil {
		return err
	}
	defer base.Unlock()
	return host.WithThrowawayMounts(func() error {
		target := filepath.Join(s.runDir(at.Name), "root")
		if err := mountRoot(at, r, target); err != nil {
			return err
		}
		root, err := host.OpenRoot(target)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := checkAccounts("start "+at.Name, root); err != nil {
			return err
		}
		if err := s.refreshResolvConf(root, spec); err != nil {
			s.Note("zone %s: /etc/resolv.conf stays as it is: %v", at.Name, err)
		}
		run.InitKind = initNone
		if spec.mode != modeScratch {
			run.InitKind = findInit(root)
		}
		c, err := s.describe(at.Name, r, z, spec, run.InitKind, shared)
		if err != nil {
			return err
		}
		c.Root = target
		if err := s.addFileSystems(at.Name, z, &c); err != nil {
			return err
		}
		if err := runtime.WriteBundle(s.bundle(at.Name), c); err != nil {
			return err
		}
		run.PID, err = s.Engine.Create(ctx, at.Name, s.bundle(at.Name), log)
		return err
	})
}

func (s *Service) platformLock() string { return filepath.Join(s.Run, "locks", "platform") }

func (s *Service) describe(name string, r Record, z config.Zone, spec startSpec, k initKind, shared string) (runtime.Container, error) {
	c := runtime.Container{
		Hostname: z.Hostname, Args: k.args(), CgroupPath: s.cgroupPath(name),
		Env: []string{
			"PATH=" + strings.Join(searchPath, ":"),
			"container=zone", "container_uuid=" + r.UUID,
		},
		Limits:         limitsOf(z),
		Mounts:         []runtime.Bind{{Source: shared, Destination: SharedMount}},
		NetworkNS:      spec.netns,
		QuietSync:      spec.quietSync,
		UnifiedCgroups: s.Cgroups.Layout == cgroup.LayoutV2,
	}
	if err := s.addProperties(name, z, &c); err != nil {
		return c, err
	}
	switch k {
	case initNone:
		if s.Init == "" {
			return c, errdefs.New(errdefs.NotSupported, "start", "the image has no init of its own and the host has no catatonit to stand in").
				WithHint("apt-get install catatonit")
		}
		c.Mounts = append(c.Mounts, runtime.Bind{Source: s.Init, Destination: smallInit})
	case initSystemd:
		c.OwnCgroups = true
		if !c.UnifiedCgroups {
			// systemd must be able to write to its own hierarchy, and to no
			// other: limits are kept there.
			dir, err := s.namedHierarchy(name)
			if err != nil {
				return c, err
			}
			c.OwnCgroups = false
			c.Mounts = append(c.Mounts, runtime.Bind{Source: dir, Destination: "/sys/fs/cgroup/systemd", Writable: true})
		}
	}
	return c, nil
}

// namedHierarchy makes the zone's directory in the hierarchy that systemd
// keeps for itself, before the engine does, so that it can be handed in.
func (s *Service) namedHierarchy(name string) (string, error) {
	if err := s.group(name).Create(); err != nil {
		return "", err
	}
	return filepath.Join("/sys/fs/cgroup/systemd", s.cgroupPath(name)), nil
}

func limitsOf(z config.Zone) runtime.Limits {
	l := runtime.Limits{
		CPUs: z.CappedCPU.NCPUs, Weight: z.CPUShares, Memory: int64(z.CappedMemory.Physical), Pids: int64(z.MaxLWPs),
		KillAll: z.CappedMemory.OOM == config.OOMZone,
	}
	if z.CappedMemory.Swap != nil {
		l.Swap = int64(*z.CappedMemory.Swap)
		if l.Swap == 0 {
			l.Swap = -1
		}
	}
	return l
}

// checkLimits reads back what the kernel holds: a limit that did not take is
// an error and not a promise.
func (s *Service) checkLimits(name string, z config.Zone) error {
	got, err := s.group(name).ReadLimits()
	if err != nil {
		return err
	}
	bad := limitMismatches(limitsOf(z), got)
	if len(bad) == 0 {
		return nil
	}
	return errdefs.New(errdefs.NotSupported, "limits of "+name, "the kernel did not take %s", strings.Join(bad, "; ")).
		WithHint("zone doctor")
}

func limitMismatches(want runtime.Limits, got cgroup.Limits) []string {
	var bad []string
	check := func(key string, wanted, held, slack float64) {
		if wanted != 0 && (held < wanted-slack || held > wanted+slack) {
			bad = append(bad, fmt.Sprintf("%s: asked %g, holds %g", key, wanted, held))
		}
	}
	const page = 4096
	check("capped-cpu.ncpus", want.CPUs, got.CPUQuota, 0.001)
	check("cpu-shares", float64(want.Weight), float64(got.CPUWeight), 1)
	check("capped-memory.physical", float64(want.Memory), float64(got.Memory), page)
	check("max-lwps", float64(want.Pids), float64(got.Pids), 0)
	switch {
	case want.Swap < 0 && got.Swap != 0:
		bad = append(bad, fmt.Sprintf("capped-memory.swap: asked 0, holds %d", got.Swap))
	case want.Swap > 0:
		check("capped-memory.swap", float64(want.Swap), float64(got.Swap), 2*page)
	}
	return bad
}

// refreshResolvConf gives the zone the name servers of the host, unless it has
// an arrangement of its own.
func (s *Service) refreshResolvConf(root *host.Root, spec startSpec) error {
	if !spec.network || s.ResolvConf == nil {
		return nil
	}
	const file = "/etc/resolv.conf"
	old, err := root.ReadFile(file)
	if err == nil && len(bytes.TrimSpace(old)) > 0 && !bytes.HasPrefix(old, []byte(writtenHeader)) {
		return nil
	}
	data, err := s.ResolvConf()
	if err != nil {
		return err
	}
	if bytes.Equal(data, old) {
		return nil
	}
	return root.WriteFile(file, data, 0o644)
}
