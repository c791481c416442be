package config

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"zone/internal/errdefs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// full returns a zone that sets every key.
func full(t testing.TB) Zone {
	t.Helper()
	var z Zone
	err := SetAll(&z, []string{
		"root=whole", "autoboot=true", "hostname=www.example.org", `description=The "first" one \ ümlaut`,
		"cpu-shares=200", "max-lwps=500", "shutdown-timeout=90s", "capped-cpu=0.75", "capped-memory=512M",
		"capped-memory.swap=0", "capped-memory.locked=64K", "capped-memory.oom=zone", "max-shm-memory=16M", "max-shm-ids=10",
		"max-sem-ids=20", "max-msg-ids=30", "limitpriv=default,-net_raw", "hostid=1a2b3c4d", "net.ip-type=none",
		"fs=dir=/srv special=/data; dir=/usr/share/x special=/opt/x type=lofs options=rw", "device=match=/dev/net/tun; match=/dev/tty[0-9]*", "attr.owner=ops", "attr.a.b=", "attr.B=x=y",
	})
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

func TestRenderGolden(t *testing.T) {
	z := full(t)
	got := Render(z)
	golden(t, "full.toml", string(got))
	back, err := Parse("full.toml", got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(z, back); diff != "" {
		t.Errorf("reads back differently (-want +got):\n%s", diff)
	}
	if got := Render(Zone{}); len(got) != 0 {
		t.Errorf("an empty zone renders as %q", got)
	}
}

// The struct's own tags must say the same as the key table.
func TestTagsMatchKeys(t *testing.T) {
	var names []string
	var walk func(typ reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for f := range typ.Fields() {
			tag, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			if jsonTag, _, _ := strings.Cut(f.Tag.Get("json"), ","); jsonTag != tag {
				t.Errorf("%s: json tag %q, toml tag %q", f.Name, jsonTag, tag)
			}
			switch f.Type.Kind() {
			case reflect.Struct:
				walk(f.Type, prefix+tag+".")
			case reflect.Map:
				names = append(names, prefix+tag+".NAME")
			default:
				names = append(names, prefix+tag)
			}
		}
	}
	walk(reflect.TypeFor[Zone](), "")
	var keys []string
	for _, k := range Keys() {
		keys = append(keys, k.Name)
		if k.Type == "" || k.Doc == "" || k.Allowed == "" || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s is not fully described: %+v", k.Name, k)
		}
	}
	if diff := cmp.Diff(names, keys); diff != "" {
		t.Errorf("fields and keys differ (-fields +keys):\n%s", diff)
	}
}

func TestKeysDoNotLeakBetweenZones(t *testing.T) {
	old := full(t)
	changed := old
	for _, k := range SetKeys(old) {
		if err := Clear(&changed, k.Name); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(Zone{}, changed); diff != "" {
		t.Errorf("something is left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(full(t), old); diff != "" {
		t.Errorf("the copy changed the original (-want +got):\n%s", diff)
	}
}

const brokenFile = `root = "spares"
cpu-share = 5
cpu-shares = "many"
max-lwps = 1.5
autoboot = "yes"
hostname = "no_good"
description = 2026-01-01
[capped-cpu]
ncpus = nan
cores = 4
[capped-memory]
physical = "12Q"
swap = "1G"
[net]
ip-type = ["exclusive"]
[attr]
ok = "fine"
zonename = "reserved"
"not ok" = "x"
n = 5
[nett]
ip-type = "none"
[frob]
x = 1
inline = { "capped-cpu.ncpus" = 1 }
`

func TestParseReportsEverythingAtOnce(t *testing.T) {
	_, err := Parse("zone.toml", []byte(brokenFile))
	if !errdefs.Is(err, errdefs.Usage) {
		t.Fatalf("kind of %v", err)
	}
	golden(t, "broken.txt", err.Error()+"\n")
	if hint := errdefs.HintOf(err); hint != keysHint {
		t.Errorf("hint %q", hint)
	}
	for _, word := range []string{"config.", "float64", "int64", "struct", "interface", "map["} {
		if strings.Contains(err.Error(), word) {
			t.Errorf("the message names %q", word)
		}
	}
}

func TestParseSingleProblems(t *testing.T) {
	tests := []struct{ in, want string }{
		{"a = ", `z.toml:1: `},
		{"\n\nautoboot = tru\n", `z.toml:3: `},
		{"autoboot = true\nautoboot = true\n", `z.toml:2: `},
		{"[capped-memory]\nswap = \"1G\"\n", "z.toml:2: capped-memory.swap: needs capped-memory.physical: swap is allowed on top of a memory cap"},
		{"capped-memory.physical = \"1M\"\n", `z.toml:1: capped-memory.physical: "1M" is too small; allowed: a size of at least 4M`},
		{"\ncapped-memory = { physical = \"64M\", swop = 1 }\n", "z.toml:2: capped-memory.swop: unknown key; did you mean capped-memory.swap?"},
		{"capped-memory = \"64M\"\n", "z.toml:1: capped-memory: is a table; its keys: physical, swap"},
		{"[cpu-shares]\nx = 1\n", "z.toml:1: cpu-shares: is a table; it takes a whole number from 1 to 10000"},
		{"[[attr]]\nx = \"1\"\n", "z.toml:1: attr: is a table; its keys: NAME"},
		{"[frob]\n", "z.toml:1: frob: unknown key; known keys: root, autoboot"},
		{"ip-type = \"none\"\n", "z.toml:1: ip-type: unknown key; did you mean net.ip-type?"},
		{"cpu-shares = 0\n", `z.toml:1: cpu-shares: "0" is out of range; allowed: a whole number from 1 to 10000`},
		{"shutdown-timeout = 30\n", "z.toml:1: shutdown-timeout: is a whole number; allowed: a time from 1s to 24h, such as 45s or 2m, in quotes"},
	}
	for _, tt := range tests {
		_, err := Parse("z.toml", []byte(tt.in))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("Parse(%q)\n got %v\nwant %s", tt.in, err, tt.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q) has more than one problem:\n%v", tt.in, err)
		}
	}
}

func TestParseAcceptsOtherForms(t *testing.T) {
	z, err := Parse("z.toml", []byte("# note\r\ncapped-cpu.ncpus = 2\r\ncapped-memory = { physical = 67108864 }\r\nmax-lwps = 1_000\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Zone{CappedCPU: CappedCPU{NCPUs: 2}, CappedMemory: CappedMemory{Physical: 64 << 20}, MaxLWPs: 1000}
	if diff := cmp.Diff(want, z); diff != "" {
		t.Error(diff)
	}
}

func TestSet(t *testing.T) {
	tests := []struct{ key, value, wantKey, want string }{
		{"capped-cpu", ".75", "capped-cpu.ncpus", "0.75"},
		{"capped-cpu.ncpus", "1.250", "capped-cpu.ncpus", "1.25"},
		{"capped-cpu", "0.01", "capped-cpu.ncpus", "0.01"},
		{"capped-memory", "1536m", "capped-memory.physical", "1.5G"},
		{"capped-memory.swap", "0", "capped-memory.swap", "0"},
		{"ip-type", "none", "net.ip-type", "none"},
		{"shutdown-timeout", "120s", "shutdown-timeout", "2m"},
		{"cpu-shares", "10000", "cpu-shares", "10000"},
		{"attr.role", "web=1", "attr.role", "web=1"},
	}
	for _, tt := range tests {
		var z Zone
		if err := Set(&z, tt.key, tt.value); err != nil {
			t.Errorf("Set(%q, %q): %v", tt.key, tt.value, err)
			continue
		}
		if got, ok := Get(z, tt.wantKey); !ok || got != tt.want {
			t.Errorf("Set(%q, %q): Get(%q) = %q, %v, want %q", tt.key, tt.value, tt.wantKey, got, ok, tt.want)
		}
	}
}

func TestSetRefuses(t *testing.T) {
	tests := []struct{ key, value, says string }{
		{"cpu-shares", "0", `cpu-shares: "0" is out of range; allowed: a whole number from 1 to 10000`},
		{"cpu-shares", "10001", "out of range"},
		{"cpu-shares", "99999999999999999999", "out of range"},
		{"cpu-shares", "1.5", "is no whole number"},
		{"cpu-shares", "", "is no whole number"},
		{"max-lwps", "-1", "out of range"},
		{"capped-cpu", "0", "out of range; allowed: a number from 0.01 to 8192"},
		{"capped-cpu", "NaN", "is no number"},
		{"capped-cpu", "Inf", "is no number"},
		{"capped-cpu", "0x1p-2", "is no number"},
		{"capped-cpu", "50%", "is no number"},
		{"capped-memory", "12Q", `capped-memory.physical: "12Q" has the unknown suffix "Q"; allowed: `},
		{"capped-memory", "1M", "too small"},
		{"root", "thick", `root: "thick" is no such choice; allowed: "sparse" or "whole"`},
		{"autoboot", "yes", "allowed: true or false"},
		{"hostname", "", "is empty"},
		{"hostname", "-web", "is no host name"},
		{"hostname", "a..b", "is no host name"},
		{"hostname", strings.Repeat("a", 65), "is too long"},
		{"description", "two\nlines", "do not print"},
		{"description", "\xff", "do not print"},
		{"attr.zonepath", "x", "cannot have this name"},
		{"attr.", "x", "cannot have this name"},
		{"attr.x", "\x1b[2J", "do not print"},
		{"cpu_shares", "5", "unknown key; did you mean cpu-shares?"},
		{"ncpus", "1", "did you mean capped-cpu.ncpus?"},
		{"phsical", "1", "did you mean capped-memory.physical?"},
		{"memory", "1", "did you mean capped-memory.physical?"},
		{"qqqq", "1", "known keys: root, autoboot,"},
		{"a\nb", "1", `"a\nb": unknown key`},
	}
	for _, tt := range tests {
		var z Zone
		err := Set(&z, tt.key, tt.value)
		if !errdefs.Is(err, errdefs.Usage) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("Set(%q, %q) = %v; want %q", tt.key, tt.value, err, tt.says)
		}
		if len(SetKeys(z)) != 0 {
			t.Errorf("Set(%q, %q) was refused and still changed the zone", tt.key, tt.value)
		}
	}
}

func TestSetAll(t *testing.T) {
	z := Zone{Hostname: "keep"}
	err := SetAll(&z, []string{"autoboot=true", "cpu-shares=0", "frobnicate", "capped-memory.swap=1G", "capped-memory=12Q"})
	if err == nil {
		t.Fatal("accepted")
	}
	golden(t, "setall.txt", err.Error()+"\n")
	if diff := cmp.Diff(Zone{Hostname: "keep"}, z); diff != "" {
		t.Errorf("changed in spite of the error:\n%s", diff)
	}
	// The order of keys that need each other does not matter.
	if err := SetAll(&z, []string{"capped-memory.swap=1G", "capped-memory=1G"}); err != nil {
		t.Error(err)
	}
}

func TestClear(t *testing.T) {
	z := full(t)
	for _, key := range []string{"attr", "capped-memory", "capped-cpu", "ip-type", "hostname", "hostname", "attr.gone", "fs", "device"} {
		if err := Clear(&z, key); err != nil {
			t.Errorf("Clear(%q): %v", key, err)
		}
	}
	want := Zone{
		Root: RootWhole, Autoboot: true, Description: z.Description, CPUShares: 200, MaxLWPs: 500,
		MaxShmMemory: 16 << 20, MaxShmIDs: 10, MaxSemIDs: 20, MaxMsgIDs: 30, LimitPriv: "default,-net_raw", HostID: "1a2b3c4d",
		ShutdownTimeout: z.ShutdownTimeout,
	}
	if diff := cmp.Diff(want, z); diff != "" {
		t.Error(diff)
	}
	if err := Clear(&z, "hostnam"); err == nil || !strings.Contains(err.Error(), "did you mean hostname?") {
		t.Errorf("got %v", err)
	}
}

func TestValidate(t *testing.T) {
	if err := Validate(full(t)); err != nil {
		t.Error(err)
	}
	if err := Validate(Zone{}); err != nil {
		t.Error(err)
	}
	swap := Size(-1)
	err := Validate(Zone{
		CPUShares: -1, MaxLWPs: 1 << 40, Hostname: "a b", Root: "x", CappedCPU: CappedCPU{NCPUs: 1e9},
		CappedMemory: CappedMemory{Swap: &swap}, Attr: map[string]string{"a b": "c\x00"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	golden(t, "validate.txt", err.Error()+"\n")
}

func TestEffective(t *testing.T) {
	z := Zone{CPUShares: 7}
	for key, want := range map[string]string{
		"root": "sparse", "autoboot": "false", "hostname": "web1", "cpu-shares": "7", "max-lwps": "",
		"shutdown-timeout": "30s", "capped-cpu": "", "net.ip-type": "exclusive", "attr.x": "", "nonsense": "",
	} {
		if got := Effective(z, "web1", key); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	// Every default that is a value must be one that the key accepts.
	for _, k := range Keys() {
		if k.Default == "" || k.Name == "hostname" {
			continue
		}
		if why := k.set(&z, k.Default); why != "" {
			t.Errorf("default of %s: %s", k.Name, why)
		}
		if got := Effective(Zone{}, "web1", k.Name); got != k.Default {
			t.Errorf("%s: effective %q, documented default %q", k.Name, got, k.Default)
		}
	}
}

func TestDiff(t *testing.T) {
	from := Zone{CPUShares: 100, Attr: map[string]string{"a": "1", "b": ""}}
	to := Zone{CPUShares: 200, Autoboot: true, Attr: map[string]string{"a": "1", "c": "3"}}
	want := []Change{
		{Key: "autoboot", New: "true"},
		{Key: "cpu-shares", Old: "100", New: "200"},
		{Key: "attr.b"},
		{Key: "attr.c", New: "3"},
	}
	if diff := cmp.Diff(want, Diff(from, to)); diff != "" {
		t.Error(diff)
	}
	if d := Diff(to, to); d != nil {
		t.Errorf("differs from itself: %v", d)
	}
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"web1", "0", "a.b-c_d", strings.Repeat("a", 63), "Global"} {
		if err := ValidName(ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "global", ".", "..", ".hidden", "-F", "_x", "a/b", "a@b", "a b", "ä", "a\n", strings.Repeat("a", 64)} {
		err := ValidName(bad)
		if !errdefs.Is(err, errdefs.Usage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ValidName(%q) = %v", bad, err)
		}
	}
	if err := ValidSnapshotName("global"); err != nil {
		t.Error(err)
	}
	if err := ValidSnapshotName("a@b"); err == nil || !strings.Contains(err.Error(), `snapshot name "a@b": not allowed; allowed: letters`) {
		t.Errorf("got %v", err)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"web1", "web2", "database", "mail"}
	for word, want := range map[string]string{
		"web1": "web1", "wbe1": "web1", "databse": "database", "DATABASE": "database", "data": "database",
		"xyz": "", "": "", "m": "", "mial": "mail", "mai": "mail", strings.Repeat("a", 5000): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Nearest("x", nil); got != "" {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(brokenFile))
	f.Add(Render(full(f)))
	f.Add([]byte("capped-memory = { physical = \"64M\", swap = 1 }\nattr.\"a.b\" = '''x'''\n[[x]]\ny=[{}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := Parse("f", data)
		if err != nil {
			if !errdefs.Is(err, errdefs.Usage) || err.Error() == "" {
				t.Fatalf("bad error %v", err)
			}
			return
		}
		checkRoundTrip(t, z)
	})
}

func FuzzSet(f *testing.F) {
	for _, k := range Keys() {
		f.Add(k.Name, k.Default)
	}
	f.Add("attr.x.y", "a\"\\b")
	f.Add("capped-cpu", "0.30000000000000004")
	f.Fuzz(func(t *testing.T, key, value string) {
		var z Zone
		if err := Set(&z, key, value); err != nil {
			return
		}
		if Validate(z) != nil { // swap alone
			z.CappedMemory.Physical = minMemory
		}
		checkRoundTrip(t, z)
		if err := Clear(&z, key); err != nil {
			t.Fatal(err)
		}
		if _, ok := Get(z, key); ok {
			t.Fatalf("%q is still set", key)
		}
	})
}

// checkRoundTrip renders a valid zone and reads it back with Parse and, as an
// independent witness, with the struct's tags alone.
func checkRoundTrip(t *testing.T, z Zone) {
	t.Helper()
	text := Render(z)
	back, err := Parse("f", text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if diff := cmp.Diff(z, back); diff != "" {
		t.Fatalf("%s reads back differently:\n%s", text, diff)
	}
	var tagged Zone
	if err := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields().Decode(&tagged); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if diff := cmp.Diff(z, tagged); diff != "" {
		t.Fatalf("%s reads differently by its tags:\n%s", text, diff)
	}
}
