package zone

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
)

// RunningConfig returns the definition that a zone was booted with, with what
// was applied since, and whether the zone runs at all.
func (s *Service) RunningConfig(ctx context.Context, name string) (z config.Zone, runs bool, err error) {
	if _, err := s.Find(ctx, name); err != nil {
		return z, false, err
	}
	run, err := s.readRunning(name)
	if err != nil || !run.alive() {
		return z, false, nil
	}
	return run.Limits, true, nil
}

// ApplyConfig makes the changes of a zone's definition that the kernel can make
// while it runs, all or none, and reads them back. It returns those and the
// ones that wait for the next boot.
func (s *Service) ApplyConfig(ctx context.Context, name string) (applied, waiting []config.Change, err error) {
	l, err := s.lock(ctx, "config", name)
	if err != nil {
		return nil, nil, err
	}
	defer l.unlock()
	at, err := s.Find(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	run, err := s.need("apply to", name, modeBoot, modeReady, modeScratch)
	if err != nil {
		return nil, nil, err
	}
	defined, err := readConfig(at.activePath(""))
	if err != nil {
		return nil, nil, err
	}
	if _, err := s.VerifyConfig(ctx, name, defined); err != nil {
		return nil, nil, err
	}
	applied, waiting = config.SplitLive(config.Pending(run.Limits, defined, name))
	if len(applied) == 0 {
		return nil, waiting, nil
	}
	next := run.Limits
	if err := config.Take(&next, defined, name, applied); err != nil {
		return nil, nil, err
	}
	if err := s.changeLimits(name, next); err != nil {
		return nil, nil, err
	}
	run.Limits = next.WithDefaults(name)
	return applied, waiting, s.writeRunning(name, run)
}

// changeLimits gives a running zone the limits of z. When one does not take,
// all are put back as they were.
func (s *Service) changeLimits(name string, z config.Zone) error {
	group := s.group(name)
	have, err := group.ReadLimits()
	if err != nil {
		return err
	}
	want := heldLimits(z)
	err = group.ChangeLimits(have, want)
	var got cgroup.Limits
	if err == nil {
		got, err = group.ReadLimits()
	}
	if err == nil {
		bad := append(limitMismatches(limitsOf(z), got), limitsLeft(want, got)...)
		if len(bad) == 0 {
			return nil
		}
		err = errdefs.New(errdefs.NotSupported, "limits of "+name, "the kernel did not take %s", strings.Join(bad, "; ")).
			WithHint("zone doctor")
	}
	if now, readErr := group.ReadLimits(); readErr != nil {
		err = errors.Join(err, readErr)
	} else if undo := group.ChangeLimits(now, have); undo != nil {
		err = errors.Join(err, fmt.Errorf("put back: %w", undo))
	}
	return err
}

// heldLimits is what the kernel is to hold for z.
func heldLimits(z config.Zone) cgroup.Limits {
	l := cgroup.Limits{CPUQuota: z.CappedCPU.NCPUs, CPUWeight: z.CPUShares, Memory: -1, Swap: -1, Pids: -1}
	if z.CPUShares == 0 {
		l.CPUWeight = config.DefaultCPUShares
	}
	if z.CappedMemory.Physical > 0 {
		l.Memory = int64(z.CappedMemory.Physical)
	}
	if z.CappedMemory.Swap != nil {
		l.Swap = int64(*z.CappedMemory.Swap)
	}
	if z.MaxLWPs > 0 {
		l.Pids = int64(z.MaxLWPs)
	}
	return l
}

// limitsLeft names the limits that hold although none is wanted any more.
func limitsLeft(want, got cgroup.Limits) []string {
	var left []string
	for _, l := range []struct {
		key  string
		left bool
	}{
		{"capped-cpu.ncpus", want.CPUQuota == 0 && got.CPUQuota != 0},
		{"capped-memory.physical", want.Memory < 0 && got.Memory >= 0},
		{"capped-memory.swap", want.Swap < 0 && got.Swap >= 0},
		{"max-lwps", want.Pids < 0 && got.Pids >= 0},
	} {
		if l.left {
			left = append(left, l.key+": was to be lifted and holds")
		}
	}
	return left
}
