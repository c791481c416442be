package config

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want Size
		text string // String of it
	}{
		{"0", 0, "0"},
		{"1", 1, "1"},
		{"1023", 1023, "1023"},
		{"1024", 1 << 10, "1K"},
		{"1000", 1000, "1000"},
		{"512M", 512 << 20, "512M"},
		{"512m", 512 << 20, "512M"},
		{"1.5G", 3 << 29, "1.5G"},
		{"1536M", 3 << 29, "1.5G"},
		{".25g", 1 << 28, "256M"},
		{"0.1K", 102, "102"},
		{"100M", 100 << 20, "100M"},
		{"2T", 2 << 40, "2T"},
		{"8191P", 8191 << 50, "8191P"},
		{"9223372036854775807", math.MaxInt64, "9223372036854775807"},
		{"007K", 7 << 10, "7K"},
	}
	for _, tt := range tests {
		got, err := ParseSize(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", tt.in, got, err, tt.want)
		}
		if got.String() != tt.text {
			t.Errorf("ParseSize(%q).String() = %q, want %q", tt.in, got, tt.text)
		}
	}
}

func TestParseSizeRefuses(t *testing.T) {
	tests := []struct{ in, says string }{
		{"", "is not a size"},
		{"12Q", `unknown suffix "Q"; allowed: a number of bytes, or a number with one of the suffixes K, M, G, T, P`},
		{"512MB", `unknown suffix "MB"`},
		{"512MiB", `unknown suffix "MiB"`},
		{"-1M", "is not a size"},
		{"+1M", "is not a size"},
		{"1 M", "is not a size"},
		{"1.M", "is not a size"},
		{"M", "is not a size"},
		{"1e9", "is not a size"},
		{"0x10", "is not a size"},
		{"1.5", "a fraction of a byte"},
		{"8192P", "is too large"},
		{"9223372036854775808", "is too large"},
		{"99999999999999999999999999", "is not a size"},
		{"١M", "is not a size"},
	}
	for _, tt := range tests {
		if got, err := ParseSize(tt.in); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("ParseSize(%q) = %d, %v; want an error with %q", tt.in, got, err, tt.says)
		}
	}
}

func TestDurationText(t *testing.T) {
	for in, want := range map[time.Duration]string{
		30 * time.Second:                "30s",
		2 * time.Minute:                 "2m",
		90 * time.Second:                "1m30s",
		24 * time.Hour:                  "24h",
		time.Hour + 5*time.Second:       "1h0m5s",
		10*time.Minute + 10*time.Second: "10m10s",
		1500 * time.Millisecond:         "1.5s",
	} {
		if got := Duration(in).String(); got != want {
			t.Errorf("%v: got %q, want %q", in, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != in {
			t.Errorf("%q reads back as %v, %v", want, back, err)
		}
	}
}

func TestJSONHasBytesAndSeconds(t *testing.T) {
	z := full(t)
	data, err := json.Marshal(z)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"physical":536870912`, `"swap":0`, `"shutdown-timeout":90`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s has no %s", data, want)
		}
	}
	var back Zone
	if err := json.Unmarshal(data, &back); err != nil || len(Diff(z, back)) != 0 {
		t.Errorf("reads back differently: %v %v", err, Diff(z, back))
	}
	if empty, _ := json.Marshal(Zone{}); string(empty) != "{}" && string(empty) != `{"autoboot":false}` {
		t.Errorf("an empty zone is %s", empty)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"0", "512M", "1.5G", "12Q", "8191P", ".25g", "1.000000001P", "9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("%q is negative: %d", s, n)
		}
		if back, err := ParseSize(n.String()); err != nil || back != n {
			t.Fatalf("%q = %d renders as %q, read back as %d, %v", s, n, n, back, err)
		}
	})
}
