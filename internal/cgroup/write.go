package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
)

// quotaPeriod is the period of CPU quotas in microseconds, as runtimes set it.
const quotaPeriod = 100_000

// sharesPerWeight is v1's default of shares over v2's default of weight.
const sharesPerWeight = 10.24

// defaultWeight is what a group has that asks for none.
const defaultWeight = 100

// ChangeLimits gives the group the limits that differ from those it has. Where
// the group uses more memory than it may keep, the error is Busy and no limit
// of memory changes; a controller that the host lacks is NotSupported. What
// the kernel then holds, ReadLimits tells.
func (g Group) ChangeLimits(have, want Limits) error {
	if want.CPUWeight == 0 {
		want.CPUWeight = defaultWeight
	}
	v2 := g.tree.Layout == LayoutV2
	var steps []func() error
	if have.Memory != want.Memory || have.Swap != want.Swap {
		// First, as it alone can be refused for what the zone does.
		steps = append(steps, func() error {
			if v2 {
				return g.changeMemoryV2(have, want)
			}
			return g.changeMemoryV1(want)
		})
	}
	if have.CPUQuota != want.CPUQuota {
		steps = append(steps, func() error { return g.writeQuota(v2, want.CPUQuota) })
	}
	if have.CPUWeight != want.CPUWeight {
		steps = append(steps, func() error { return g.writeWeight(v2, want.CPUWeight) })
	}
	if have.Pids != want.Pids {
		steps = append(steps, func() error { return g.write("pids", "pids.max", orMax(want.Pids)) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("change limits of %s: %w", g.path, err)
		}
	}
	return nil
}

func (g Group) writeQuota(v2 bool, cpus float64) error {
	quota := fmt.Sprint(int64(math.Round(cpus * quotaPeriod)))
	if v2 {
		if cpus == 0 {
			quota = "max"
		}
		return g.write("cpu", "cpu.max", fmt.Sprintf("%s %d", quota, quotaPeriod))
	}
	if cpus == 0 {
		return g.write("cpu", "cpu.cfs_quota_us", "-1")
	}
	if err := g.write("cpu", "cpu.cfs_period_us", fmt.Sprint(quotaPeriod)); err != nil {
		return err
	}
	return g.write("cpu", "cpu.cfs_quota_us", quota)
}

func (g Group) writeWeight(v2 bool, weight int) error {
	if v2 {
		return g.write("cpu", "cpu.weight", fmt.Sprint(weight))
	}
	return g.write("cpu", "cpu.shares", fmt.Sprint(int64(max(2, math.Round(float64(weight)*sharesPerWeight)))))
}

// changeMemoryV1 keeps memory at or below memory and swap together, which the
// kernel insists on: what is raised goes first, what is lowered last.
func (g Group) changeMemoryV1(want Limits) error {
	const one, both = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	sum, sumNow := int64(-1), int64(-1)
	if want.Memory >= 0 && want.Swap >= 0 {
		sum = want.Memory + want.Swap
	}
	dir := g.controller("memory")
	if _, err := os.Stat(filepath.Join(dir, both)); err != nil {
		if sum >= 0 {
			return errdefs.New(errdefs.NotSupported, "capped-memory.swap", "the kernel does not count swap").
				WithHint("boot the host with swapaccount=1")
		}
		return g.writeMemory([]string{one}, map[string]int64{one: want.Memory})
	}
	if err := readValue(dir, both, parseSize, &sumNow); err != nil {
		return err
	}
	order := []string{one, both}
	if sum < 0 || sumNow >= 0 && sum >= sumNow {
		order = []string{both, one}
	}
	return g.writeMemory(order, map[string]int64{one: want.Memory, both: sum})
}

// writeMemory writes v1's files in order; when one is refused, those before it
// get back what they held.
func (g Group) writeMemory(order []string, values map[string]int64) error {
	dir := g.controller("memory")
	var undo []func()
	for _, name := range order {
		old := int64(-1)
		if err := readValue(dir, name, parseSize, &old); err != nil {
			return err
		}
		if err := g.write("memory", name, fmt.Sprint(values[name])); err != nil {
			for _, f := range undo {
				f()
			}
			return g.busyMemory(err, values[name])
		}
		undo = append(undo, func() { _ = g.write("memory", name, fmt.Sprint(old)) })
	}
	return nil
}

// changeMemoryV2 has the kernel reclaim down to a lower limit before it is
// set: setting it at once would kill what does not fit.
func (g Group) changeMemoryV2(have, want Limits) error {
	if want.Memory >= 0 && (have.Memory < 0 || want.Memory < have.Memory) {
		err := g.write("memory", "memory.high", fmt.Sprint(want.Memory))
		defer func() { _ = g.write("memory", "memory.high", "max") }()
		used := int64(0)
		if err == nil {
			err = readValue(g.controller("memory"), "memory.current", parseSize, &used)
		}
		if err == nil && used > want.Memory {
			err = g.busyMemory(unix.EBUSY, want.Memory)
		}
		if err != nil {
			return err
		}
	}
	if have.Swap != want.Swap {
		if err := g.write("memory", "memory.swap.max", orMax(want.Swap)); err != nil {
			return err
		}
	}
	return g.write("memory", "memory.max", orMax(want.Memory))
}

func (g Group) busyMemory(err error, limit int64) error {
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	used, _ := g.ReadStat()
	return errdefs.New(errdefs.Busy, "capped-memory", "%d bytes are in use and cannot be brought down to %d", used.MemoryTotal, limit)
}

// write writes one control file. A controller without it is NotSupported.
func (g Group) write(controller, name, value string) error {
	dir := g.controller(controller)
	err := fs.ErrNotExist
	if dir != "" {
		err = writeFile(filepath.Join(dir, name), value)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errdefs.New(errdefs.NotSupported, name, "the host gives no cgroup controller %s", controller).WithHint("zone doctor")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func orMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return fmt.Sprint(n)
}
