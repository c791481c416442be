package stat

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/stat, the same on every Linux a program can see.
const tick = time.Second / 100

// parseStat reads busy time and the number of CPUs from /proc/stat. Time
// stolen by a hypervisor is nobody's use; a guest's time is in "user" already.
func (h *Host) parseStat(s string) error {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) == 0 || !strings.HasPrefix(f[0], "cpu") {
			continue
		}
		if f[0] != "cpu" {
			h.CPUs++
			continue
		}
		if len(f) < 8 {
			return errors.New("too few columns of CPU time")
		}
		var ticks int64
		for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
			n, err := strconv.ParseInt(f[i], 10, 64)
			if err != nil {
				return fmt.Errorf("CPU time: %w", err)
			}
			ticks += n
		}
		h.CPU = time.Duration(ticks) * tick
	}
	if h.CPUs == 0 {
		return errors.New("no CPU listed")
	}
	return nil
}

// parseMeminfo reads sizes and use of memory and swap.
func (h *Host) parseMeminfo(s string) error {
	kib := map[string]int64{}
	for line := range strings.Lines(s) {
		key, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
			kib[key] = n
		}
	}
	if kib["MemTotal"] == 0 {
		return errors.New("no MemTotal")
	}
	h.MemorySize = kib["MemTotal"] << 10
	h.MemoryUsed = max(0, kib["MemTotal"]-kib["MemAvailable"]) << 10
	h.SwapSize = kib["SwapTotal"] << 10
	h.SwapUsed = max(0, kib["SwapTotal"]-kib["SwapFree"]) << 10
	return nil
}

// parseLoadavg reads the number of tasks: "0.10 0.20 0.30 2/345 6789".
func (h *Host) parseLoadavg(s string) error {
	f := strings.Fields(s)
	if len(f) < 4 {
		return fmt.Errorf("unexpected content %.40q", s)
	}
	_, all, _ := strings.Cut(f[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	h.Tasks = n
	return err
}

// parseTasksMax takes the lower of the kernel's limits on tasks.
func (h *Host) parseTasksMax(s string) error {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err == nil && (h.TasksMax == 0 || n < h.TasksMax) {
		h.TasksMax = n
	}
	return err
}
