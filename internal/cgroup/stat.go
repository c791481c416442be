package cgroup

import (
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is what a group and the groups below it use: counters since it was
// made, and present amounts.
type Stat struct {
	CPU, User, System time.Duration // processor time
	Throttled         time.Duration // time its CPU quota held it back
	Periods           uint64        // quota periods with something to run
	ThrottledPeriods  uint64        // those of them in which the quota ran out

	Memory      int64 // working set, bytes: all but file pages long unused
	MemoryTotal int64 // all that is charged, bytes
	MemoryFile  int64 // of it page cache, bytes
	MemoryAnon  int64 // of it anonymous memory, bytes
	Swap        int64 // bytes
	Pids        int64 // tasks: processes and their threads
	OOMKills    uint64

	// Time in which some task waited for the resource; -1 where the kernel
	// does not tell.
	CPUPressure, MemoryPressure, IOPressure time.Duration
}

// ReadStat reads the group's use. A controller that the host lacks leaves its
// fields 0. A group that does not exist, or vanishes meanwhile, is
// fs.ErrNotExist.
func (g Group) ReadStat() (Stat, error) {
	r := reader{buf: make([]byte, 0, 8<<10)}
	s := Stat{CPUPressure: -1, MemoryPressure: -1, IOPressure: -1}
	if g.tree.Layout == LayoutV2 {
		g.readStatV2(&r, &s)
	} else {
		g.readStatV1(&r, &s)
	}
	if r.err == nil && !g.Exists() {
		r.err = fs.ErrNotExist
	}
	if r.err != nil {
		return Stat{}, fmt.Errorf("read use of %s: %w", g.path, r.err)
	}
	return s, nil
}

func (g Group) readStatV2(r *reader, s *Stat) {
	dir := g.controller("cpu")
	s.addCPUStat(r.read(dir, "cpu.stat"))
	s.MemoryTotal = r.int64(dir, "memory.current")
	s.addMemoryStat(r.read(dir, "memory.stat"), false)
	s.Swap = r.int64(dir, "memory.swap.current")
	s.OOMKills = keyedValue(r.read(dir, "memory.events"), "oom_kill")
	s.Pids = r.int64(dir, "pids.current")
	s.readPressure(r, dir)
}

// readStatV1 takes CPU time and pressure from cgroup2 where it is mounted
// beside v1, as it has both in fewer files.
func (g Group) readStatV1(r *reader, s *Stat) {
	unified := g.unified()
	if unified != "" {
		s.addCPUStat(r.read(unified, "cpu.stat"))
		s.readPressure(r, unified)
	} else {
		dir := g.controller("cpuacct")
		s.CPU = time.Duration(r.int64(dir, "cpuacct.usage"))
		s.User = time.Duration(r.int64(dir, "cpuacct.usage_user"))
		s.System = time.Duration(r.int64(dir, "cpuacct.usage_sys"))
	}
	s.addCPUStat(r.read(g.controller("cpu"), "cpu.stat"))
	memory := g.controller("memory")
	s.MemoryTotal = r.int64(memory, "memory.usage_in_bytes")
	s.addMemoryStat(r.read(memory, "memory.stat"), true)
	s.OOMKills = keyedValue(r.read(memory, "memory.oom_control"), "oom_kill")
	s.Pids = r.int64(g.controller("pids"), "pids.current")
}

// addCPUStat takes what a cpu.stat of either version has.
func (s *Stat) addCPUStat(b []byte) {
	eachKeyed(b, func(key []byte, n uint64) {
		switch string(key) {
		case "usage_usec":
			s.CPU = micros(n)
		case "user_usec":
			s.User = micros(n)
		case "system_usec":
			s.System = micros(n)
		case "nr_periods":
			s.Periods = n
		case "nr_throttled":
			s.ThrottledPeriods = n
		case "throttled_usec":
			s.Throttled = micros(n)
		case "throttled_time":
			s.Throttled = time.Duration(n)
		}
	})
}

// addMemoryStat takes the sums over the group and those below it, which have
// names of their own on v1, and works out the working set.
func (s *Stat) addMemoryStat(b []byte, v1 bool) {
	file, anon, inactive, swap := "file", "anon", "inactive_file", ""
	if v1 {
		file, anon, inactive, swap = "total_cache", "total_rss", "total_inactive_file", "total_swap"
	}
	var unused int64
	eachKeyed(b, func(key []byte, n uint64) {
		switch string(key) {
		case file:
			s.MemoryFile = int64(n)
		case anon:
			s.MemoryAnon = int64(n)
		case inactive:
			unused = int64(n)
		case swap:
			s.Swap = int64(n)
		}
	})
	s.Memory = max(0, s.MemoryTotal-unused)
}

func (s *Stat) readPressure(r *reader, dir string) {
	s.CPUPressure = r.pressure(dir, "cpu.pressure")
	s.MemoryPressure = r.pressure(dir, "memory.pressure")
	s.IOPressure = r.pressure(dir, "io.pressure")
}

func micros(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }

// reader reads many small files into one buffer; what read returns is valid
// until the next call. It keeps the first error that is not about a missing
// file.
type reader struct {
	buf []byte
	err error
}

func (r *reader) read(dir, name string) []byte {
	if dir == "" || r.err != nil {
		return nil
	}
	b, err := readInto(r.buf[:0], dir+"/"+name)
	r.buf = b
	// Pressure files exist but cannot be read where pressure is switched off.
	if err != nil && err != unix.EOPNOTSUPP {
		r.err = ignoreGone(err)
	}
	if err != nil {
		return nil
	}
	return b
}

func (r *reader) int64(dir, name string) int64 {
	n, ok := parseSize(r.read(dir, name))
	if !ok {
		return 0
	}
	return max(0, n)
}

func (r *reader) pressure(dir, name string) time.Duration {
	n, ok := parsePressure(r.read(dir, name))
	if !ok {
		return -1
	}
	return micros(n)
}

func readInto(buf []byte, file string) ([]byte, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buf, err
	}
	defer unix.Close(fd)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return buf, err
		}
		buf = buf[:len(buf)+n]
	}
}
