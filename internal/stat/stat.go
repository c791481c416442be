// Package stat tells who uses what: each zone's use beside its cap and its
// share, with the host's totals. Reading (Sampler) is apart from reckoning
// (Rates), which is pure. It does not know how zones are kept; callers name the
// groups to read.
package stat

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"zone/internal/cgroup"
)

// Caps is what a zone may use at most, and its share.
type Caps struct {
	CPU    float64 // CPUs, 0 is none
	Shares int     // weight against other zones, 0 is unknown
	Memory int64   // bytes, 0 or less is none
	Swap   int64   // bytes, negative is none
	Pids   int64   // tasks, 0 or less is none
}

// Source is a running zone to read.
type Source struct {
	Name  string
	Group cgroup.Group
	Caps  Caps
}

// Reading is what one zone had used at one moment.
type Reading struct {
	Name string
	Caps Caps
	ID   uint64 // of this life of the zone's group: another one after a reboot
	At   time.Time
	Use  cgroup.Stat
}

// Host is what the whole machine had used at one moment.
type Host struct {
	At                     time.Time
	CPUs                   int
	CPU                    time.Duration // busy time of all CPUs since boot
	MemorySize, MemoryUsed int64         // bytes; used is what is not available
	SwapSize, SwapUsed     int64         // bytes
	Tasks, TasksMax        int64
}

// Sample is the machine and its zones at about one moment.
type Sample struct {
	Host  Host
	Zones []Reading
}

// Sampler reads samples.
type Sampler struct {
	Root string           // where proc is found: "/" outside tests
	Now  func() time.Time // nil is time.Now
}

// Read takes a sample of the sources. A zone that is gone by now is left out.
func (s Sampler) Read(sources []Source) (Sample, error) {
	now := s.Now
	if now == nil {
		now = time.Now
	}
	var out Sample
	for _, src := range sources {
		r := Reading{Name: src.Name, Caps: src.Caps, ID: src.Group.ID()}
		var err error
		r.At = now() // rates are reckoned by the time of the CPU counter, which is read first
		r.Use, err = src.Group.ReadStat()
		if errors.Is(err, fs.ErrNotExist) || (err == nil && r.ID != src.Group.ID()) {
			continue // halted, or halted and booted again, while being read
		}
		if err != nil {
			return Sample{}, fmt.Errorf("stat of %s: %w", src.Name, err)
		}
		out.Zones = append(out.Zones, r)
	}
	at := now()
	host, err := s.host()
	host.At = at
	out.Host = host
	return out, err
}

func (s Sampler) host() (Host, error) {
	var h Host
	err := errors.Join(
		s.parse("stat", h.parseStat),
		s.parse("meminfo", h.parseMeminfo),
		s.parse("loadavg", h.parseLoadavg),
		s.parse("sys/kernel/pid_max", h.parseTasksMax),
		s.parse("sys/kernel/threads-max", h.parseTasksMax),
	)
	return h, err
}

func (s Sampler) parse(name string, parse func(string) error) error {
	file := filepath.Join(s.Root, "proc", name)
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := parse(string(b)); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
