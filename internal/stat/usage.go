package stat

import (
	"cmp"
	"slices"
	"time"
)

// The names of the rows that are no zone. A zone's name cannot hold brackets.
const (
	TotalRow  = "[total]"  // the whole host, its capacity as cap
	SystemRow = "[system]" // what no zone owns
)

// Usage is one row: what a zone used between two samples, beside its caps.
// Amounts without a cap have a null cap and percentage.
type Usage struct {
	Zone     string    `json:"zone"`
	Time     time.Time `json:"time"`     // end of the interval
	Interval float64   `json:"interval"` // seconds

	CPU          float64  `json:"cpu"` // CPUs kept busy
	CPUCap       *float64 `json:"cpu_cap"`
	CPUPercent   *float64 `json:"cpu_percent"` // of the cap
	Shares       *int64   `json:"shares"`
	SharePercent *float64 `json:"share_percent"`     // of what the shares give when all want CPU; can pass 100
	Throttled    *float64 `json:"throttled_percent"` // of the quota periods, those that ran dry

	Memory        int64    `json:"memory"` // working set, bytes
	MemoryCap     *int64   `json:"memory_cap"`
	MemoryPercent *float64 `json:"memory_percent"`
	Swap          int64    `json:"swap"` // bytes
	SwapCap       *int64   `json:"swap_cap"`
	SwapPercent   *float64 `json:"swap_percent"`
	Pids          int64    `json:"pids"` // tasks
	PidsCap       *int64   `json:"pids_cap"`
	PidsPercent   *float64 `json:"pids_percent"`
}

// Rates reckons the use between two samples: the rows [total] and [system],
// then the zones of the later sample by name. A zone that is new in it, or was
// rebooted, is counted from its start. What a zone that is gone had used falls
// to [system].
func Rates(prev, cur Sample) []Usage {
	before := make(map[uint64]Reading, len(prev.Zones))
	for _, r := range prev.Zones {
		before[r.ID] = r
	}
	var shares int64
	for _, r := range cur.Zones {
		shares += int64(max(0, r.Caps.Shares))
	}
	zones := make([]Usage, 0, len(cur.Zones))
	for _, r := range cur.Zones {
		old, ok := before[r.ID]
		if !ok || old.Name != r.Name || restarted(old, r) {
			old = Reading{At: prev.Host.At}
		}
		u := zoneUsage(old, r, cur.Host.CPUs)
		u.setShare(r.Caps.Shares, shares, cur.Host.CPUs)
		zones = append(zones, u)
	}
	slices.SortStableFunc(zones, func(a, b Usage) int { return cmp.Compare(a.Zone, b.Zone) })
	total := totalUsage(prev.Host, cur.Host)
	system := rest(&total, zones)
	return append([]Usage{total, system}, zones...)
}

// restarted reports whether counters went back: the group was made anew under
// an id that was used before.
func restarted(old, cur Reading) bool {
	return cur.Use.CPU < old.Use.CPU || cur.Use.Periods < old.Use.Periods ||
		cur.Use.ThrottledPeriods < old.Use.ThrottledPeriods
}

func zoneUsage(old, cur Reading, cpus int) Usage {
	elapsed := cur.At.Sub(old.At)
	u := Usage{
		Zone: cur.Name, Time: cur.At, Interval: elapsed.Seconds(),
		CPU:    min(rate(cur.Use.CPU-old.Use.CPU, elapsed), float64(cpus)),
		Memory: cur.Use.Memory, Swap: cur.Use.Swap, Pids: cur.Use.Pids,
	}
	c := cur.Caps
	u.setCaps(c.CPU, c.Memory, c.Swap, c.Pids)
	if c.CPU > 0 {
		periods := cur.Use.Periods - old.Use.Periods
		u.Throttled = percent(float64(cur.Use.ThrottledPeriods-old.Use.ThrottledPeriods), float64(max(1, periods)))
	}
	return u
}

// setCaps sets caps and percentages. Zero is none, but for swap, where it
// means that there must be none used.
func (u *Usage) setCaps(cpu float64, memory, swap, pids int64) {
	if cpu > 0 {
		u.CPUCap, u.CPUPercent = &cpu, percent(u.CPU, cpu)
	}
	if memory > 0 {
		u.MemoryCap, u.MemoryPercent = &memory, percent(float64(u.Memory), float64(memory))
	}
	if swap >= 0 {
		u.SwapCap, u.SwapPercent = &swap, percent(float64(u.Swap), float64(swap))
	}
	if pids > 0 {
		u.PidsCap, u.PidsPercent = &pids, percent(float64(u.Pids), float64(pids))
	}
}

// setShare compares the use with the part of the host that the zone's shares
// give it when every zone wants all it can get.
func (u *Usage) setShare(own int, all int64, cpus int) {
	if own <= 0 {
		return
	}
	n := int64(own)
	u.Shares = &n
	u.SharePercent = percent(u.CPU, float64(cpus)*float64(n)/float64(all))
}

func totalUsage(prev, cur Host) Usage {
	elapsed := cur.At.Sub(prev.At)
	u := Usage{
		Zone: TotalRow, Time: cur.At, Interval: elapsed.Seconds(),
		CPU:    min(rate(cur.CPU-prev.CPU, elapsed), float64(cur.CPUs)),
		Memory: cur.MemoryUsed, Swap: cur.SwapUsed, Pids: cur.Tasks,
	}
	u.setCaps(float64(cur.CPUs), cur.MemorySize, cur.SwapSize, cur.TasksMax)
	return u
}

// rest is what the zones leave of the total. The kernel counts the host's CPU
// time in ticks and zones' in nanoseconds, and not all is read at one moment:
// where the zones sum up to more than the total, the total is what they sum up
// to (within the host's capacity) and the rest is nothing.
func rest(total *Usage, zones []Usage) Usage {
	sum := Usage{}
	for _, z := range zones {
		sum.CPU += z.CPU
		sum.Memory += z.Memory
		sum.Swap += z.Swap
		sum.Pids += z.Pids
	}
	if total.CPU < sum.CPU {
		total.CPU = min(sum.CPU, *total.CPUCap)
		total.CPUPercent = percent(total.CPU, *total.CPUCap)
	}
	return Usage{
		Zone: SystemRow, Time: total.Time, Interval: total.Interval,
		CPU:    max(0, total.CPU-sum.CPU),
		Memory: max(0, total.Memory-sum.Memory),
		Swap:   max(0, total.Swap-sum.Swap),
		Pids:   max(0, total.Pids-sum.Pids),
	}
}

// rate is time used over time gone by; 0 when either did not go forward.
func rate(used, elapsed time.Duration) float64 {
	if used <= 0 || elapsed <= 0 {
		return 0
	}
	return float64(used) / float64(elapsed)
}

// percent is nil when there is nothing to be a part of.
func percent(part, whole float64) *float64 {
	if whole <= 0 {
		return nil
	}
	p := 100 * part / whole
	return &p
}
