package cgroup

import (
	"bytes"
	"math"
)

// noLimit is what v1 shows for "none" at least: the largest count of pages.
const noLimit = math.MaxInt64 - 1<<20

// eachKeyed calls f for every "key value" line. Lines of another form are
// passed over: kernels add to these files.
func eachKeyed(b []byte, f func(key []byte, value uint64)) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		key, value, ok := bytes.Cut(line, []byte{' '})
		if !ok {
			continue
		}
		if n, ok := parseUint(value); ok {
			f(key, n)
		}
	}
}

// keyedValue returns the value of one key, 0 when it is not there.
func keyedValue(b []byte, key string) uint64 {
	var v uint64
	eachKeyed(b, func(k []byte, n uint64) {
		if string(k) == key {
			v = n
		}
	})
	return v
}

// parseUint reads a decimal number that may have white space around it.
func parseUint(b []byte) (uint64, bool) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		next := n*10 + uint64(c-'0')
		if n > math.MaxUint64/10 || next < n {
			return 0, false
		}
		n = next
	}
	return n, true
}

// parseSize reads a count of bytes or tasks; "max" and what v1 shows for no
// limit are -1.
func parseSize(b []byte) (int64, bool) {
	if string(bytes.TrimSpace(b)) == "max" {
		return -1, true
	}
	n, ok := parseUint(b)
	if !ok {
		return 0, false
	}
	if n >= noLimit {
		return -1, true
	}
	return int64(n), true
}

// parseCPUMax reads cpu.max ("50000 100000", "max 100000") as CPUs; 0 is none.
func parseCPUMax(b []byte) (float64, bool) {
	quota, period, _ := bytes.Cut(bytes.TrimSpace(b), []byte{' '})
	if string(quota) == "max" {
		return 0, true
	}
	q, ok1 := parseUint(quota)
	p, ok2 := parseUint(period)
	if !ok1 || !ok2 || p == 0 {
		return 0, false
	}
	return float64(q) / float64(p), true
}

// parsePressure returns the total stall of a pressure file's "some" line in
// microseconds.
func parsePressure(b []byte) (uint64, bool) {
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	if !bytes.HasPrefix(line, []byte("some ")) {
		return 0, false
	}
	_, total, ok := bytes.Cut(line, []byte(" total="))
	if !ok {
		return 0, false
	}
	return parseUint(total)
}

// appendPids adds the process ids in a cgroup.procs file. The kernel shows 0
// for a process that the reader's namespace does not know; it is left out.
func appendPids(pids []int, b []byte) []int {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		if n, ok := parseUint(line); ok && n > 0 && n <= math.MaxInt32 {
			pids = append(pids, int(n))
		}
	}
	return pids
}
