package zone

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
)

// LoadConfig returns the definition of a zone.
func (s *Service) LoadConfig(ctx context.Context, name string) (config.Zone, error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return config.Zone{}, err
	}
	return readConfig(at.activePath(""))
}

// UpdateConfig changes the definition of a zone by a function of the present
// one, under the zone's lock. It takes effect at the next boot or, where the
// kernel can, by ApplyConfig.
func (s *Service) UpdateConfig(ctx context.Context, name string, change func(config.Zone) (config.Zone, error)) error {
	l, err := s.lock(ctx, "config", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	z, err := readConfig(at.activePath(""))
	if err != nil {
		return err
	}
	if z, err = change(z); err != nil {
		return err
	}
	if err := config.Validate(z); err != nil {
		return err
	}
	return writeConfig(at.activePath(""), z)
}

// VerifyConfig checks a definition against this host.
func (s *Service) VerifyConfig(ctx context.Context, name string, z config.Zone) (warnings []string, err error) {
	if err := config.Validate(z); err != nil {
		return nil, err
	}
	if _, err := s.Find(ctx, name); err != nil {
		return nil, err
	}
	have, err := s.Cgroups.Controllers()
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, c := range have {
		held[c] = true
	}
	l := limitsOf(z)
	for _, need := range []struct {
		wanted          bool
		key, controller string
	}{
		{l.CPUs > 0, "capped-cpu.ncpus", "cpu"},
		{l.Weight > 0, "cpu-shares", "cpu"},
		{l.Memory > 0, "capped-memory.physical", "memory"},
		{l.Swap != 0, "capped-memory.swap", "memory"},
		{l.Pids > 0, "max-lwps", "pids"},
	} {
		if need.wanted && !held[need.controller] {
			return nil, errdefs.New(errdefs.NotSupported, "verify "+name, "%s needs the cgroup controller %s, which this host does not give",
				need.key, need.controller).WithHint("zone doctor")
		}
	}
	if err := s.refuseProperties("verify", name, z); err != nil {
		return nil, err
	}
	if n := onlineCPUs(); l.CPUs > float64(n) {
		warnings = append(warnings, fmt.Sprintf("capped-cpu.ncpus is %g and the host has %d CPUs: it caps nothing", l.CPUs, n))
	}
	if total := physicalMemory(); l.Memory > total {
		warnings = append(warnings, fmt.Sprintf("capped-memory.physical is %s and the host has %s: it caps nothing",
			config.Size(l.Memory), config.Size(total)))
	}
	return warnings, nil
}

// ZoneRunning reports whether the zone has processes.
func (s *Service) ZoneRunning(ctx context.Context, name string) (bool, error) {
	st, err := s.State(ctx, name)
	return st == Running || st == Ready || st == Mounted || st == ShuttingDown, err
}

// Reboot shuts a zone down and boots it again under one lock.
func (s *Service) Reboot(ctx context.Context, name string) error {
	l, err := s.lock(ctx, "reboot", name)
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := s.stopLocked(ctx, "reboot", name, s.graceful(ctx, name)); err != nil {
		return err
	}
	return s.bootLocked(ctx, name)
}

func onlineCPUs() int { return runtime.NumCPU() }

// physicalMemory returns the host's memory in bytes.
func physicalMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return math.MaxInt64
	}
	return int64(info.Totalram) * int64(info.Unit)
}
