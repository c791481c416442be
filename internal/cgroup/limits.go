package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// Limits is what the kernel holds for a group itself; a limit of a group above
// it may bind sooner.
type Limits struct {
	CPUQuota  float64 // CPUs, 0 is none
	CPUWeight int     // on the scale of v2: 1 to 10000, default 100; 0 is unknown
	Memory    int64   // bytes, -1 is none
	Swap      int64   // bytes of swap alone, -1 is none
	Pids      int64   // tasks, -1 is none
}

// ReadLimits reads the limits back from the kernel. A controller that the
// host lacks limits nothing. A group that does not exist is fs.ErrNotExist.
func (g Group) ReadLimits() (Limits, error) {
	if !g.Exists() {
		return Limits{}, fmt.Errorf("read limits of %s: %w", g.path, fs.ErrNotExist)
	}
	l := Limits{Memory: -1, Swap: -1, Pids: -1}
	var err error
	if g.tree.Layout == LayoutV2 {
		err = g.readLimitsV2(&l)
	} else {
		err = g.readLimitsV1(&l)
	}
	if err != nil {
		return Limits{}, fmt.Errorf("read limits of %s: %w", g.path, err)
	}
	return l, nil
}

func (g Group) readLimitsV2(l *Limits) error {
	dir := g.controller("cpu")
	var weight int64
	err := errors.Join(
		readValue(dir, "cpu.max", parseCPUMax, &l.CPUQuota),
		readValue(dir, "cpu.weight", parseSize, &weight),
		readValue(dir, "memory.max", parseSize, &l.Memory),
		readValue(dir, "memory.swap.max", parseSize, &l.Swap),
		readValue(dir, "pids.max", parseSize, &l.Pids),
	)
	l.CPUWeight = int(weight)
	return err
}

func (g Group) readLimitsV1(l *Limits) error {
	cpu, memory := g.controller("cpu"), g.controller("memory")
	var shares int64
	quota, period, both := int64(-1), int64(0), int64(-1)
	err := errors.Join(
		readValue(cpu, "cpu.shares", parseSize, &shares),
		readValue(cpu, "cpu.cfs_quota_us", parseQuota, &quota),
		readValue(cpu, "cpu.cfs_period_us", parseSize, &period),
		readValue(memory, "memory.limit_in_bytes", parseSize, &l.Memory),
		readValue(memory, "memory.memsw.limit_in_bytes", parseSize, &both),
		readValue(g.controller("pids"), "pids.max", parseSize, &l.Pids),
	)
	l.CPUWeight = weightOf(shares)
	if quota > 0 && period > 0 {
		l.CPUQuota = float64(quota) / float64(period)
	}
	if l.Memory >= 0 && both >= 0 {
		l.Swap = max(0, both-l.Memory)
	}
	return err
}

// weightOf turns v1's shares (default 1024) into v2's weight (default 100),
// keeping the ratio between groups.
func weightOf(shares int64) int {
	if shares <= 0 {
		return 0
	}
	return max(1, int(math.Round(float64(shares)/sharesPerWeight)))
}

// parseQuota reads cpu.cfs_quota_us, where -1 is none.
func parseQuota(b []byte) (int64, bool) {
	if len(b) > 0 && b[0] == '-' {
		return -1, true
	}
	return parseSize(b)
}

// readValue parses one control file into v. A file that does not exist leaves
// v as it is.
func readValue[T any](dir, name string, parse func([]byte) (T, bool), v *T) error {
	if dir == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ignoreGone(err)
	}
	got, ok := parse(b)
	if !ok {
		return fmt.Errorf("%s: unexpected content %.40q", name, b)
	}
	*v = got
	return nil
}

// KillsAll reports whether the kernel ends all processes of the group when
// their memory does not suffice. On v1 it never does.
func (g Group) KillsAll() (bool, error) {
	var n int64
	if g.tree.Layout != LayoutV2 {
		return false, nil
	}
	err := readValue(g.controller("memory"), "memory.oom.group", parseSize, &n)
	return n == 1, err
}
