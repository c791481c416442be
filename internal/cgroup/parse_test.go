package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64
		ok   bool
	}{
		{"0\n", 0, true},
		{"max\n", -1, true},
		{"9223372036854771712\n", -1, true}, // v1's "none" with 4 KiB pages
		{"9223372036854710272\n", -1, true}, // with 64 KiB pages
		{"18446744073709551615", -1, true},
		{"18446744073709551616", 0, false},
		{"99999999999999999999", 0, false},
		{"", 0, false},
		{"-1", 0, false},
		{"12 13", 0, false},
	} {
		if got, ok := parseSize([]byte(tt.in)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %d %v, want %d %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParseCPUMax(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want float64
		ok   bool
	}{
		{"max 100000\n", 0, true},
		{"25000 50000\n", 0.5, true},
		{"25000 0\n", 0, false},
		{"25000\n", 0, false},
		{"", 0, false},
	} {
		if got, ok := parseCPUMax([]byte(tt.in)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %v %v, want %v %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParsePressure(t *testing.T) {
	for in, want := range map[string]uint64{
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=527\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n": 527,
		"full avg10=0.00 total=9\n": 0,
		"some avg10=0.00\n":         0,
		"":                          0,
	} {
		if got, ok := parsePressure([]byte(in)); got != want || ok != (want > 0) {
			t.Errorf("%q: %d %v", in, got, ok)
		}
	}
}

// Process id 0 stands for "not in your namespace"; a signal to it would hit
// the caller's own process group.
func TestAppendPidsLeavesOutZero(t *testing.T) {
	got := appendPids(nil, []byte("0\n7\n-1\nx\n99999999999\n8"))
	if d := cmp.Diff([]int{7, 8}, got); d != "" {
		t.Error(d)
	}
}

func TestWeightOf(t *testing.T) {
	for shares, want := range map[int64]int{0: 0, 2: 1, 1024: 100, 2048: 200, 262144: 25600} {
		if got := weightOf(shares); got != want {
			t.Errorf("%d shares: weight %d, want %d", shares, got, want)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("some avg10=0.00 total=5\nusage_usec 12\nnr_throttled 3\n"))
	f.Add([]byte("max 100000"))
	f.Add([]byte("18446744073709551615"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Stat
		s.addCPUStat(b)
		s.addMemoryStat(b, true)
		s.addMemoryStat(b, false)
		if s.Memory < 0 {
			t.Errorf("working set %d", s.Memory)
		}
		parsePressure(b)
		if n, ok := parseSize(b); ok && n < -1 {
			t.Errorf("size %d", n)
		}
		if n, ok := parseCPUMax(b); ok && n < 0 {
			t.Errorf("quota %v", n)
		}
		for _, pid := range appendPids(nil, b) {
			if pid <= 0 {
				t.Errorf("process id %d", pid)
			}
		}
	})
}
