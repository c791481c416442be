package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
)

func TestAddAndRemove(t *testing.T) {
	var z Zone
	for _, words := range [][]string{
		{"dir=/srv", "special=/data"},
		{"special=/opt/x", "dir=/mnt/x", "options=rw"},
		{"dir=/mnt/y", "special=/opt/x", "type=lofs"},
	} {
		if err := Add(&z, "fs", words); err != nil {
			t.Fatal(err)
		}
	}
	copied := z
	want := []FS{{Dir: "/srv", Special: "/data"}, {Dir: "/mnt/x", Special: "/opt/x", Options: "rw"}, {Dir: "/mnt/y", Special: "/opt/x", Type: "lofs"}}
	if diff := cmp.Diff(want, z.FS); diff != "" {
		t.Error(diff)
	}
	if err := Remove(&z, "fs", []string{"special=/opt/x", "options=rw"}); err != nil || len(z.FS) != 2 {
		t.Errorf("%v, left %v", err, z.FS)
	}
	if err := Remove(&z, "fs", []string{"dir=/srv", "special=/opt/x"}); !errdefs.Is(err, errdefs.NotFound) || len(z.FS) != 2 {
		t.Errorf("fields of two entries: %v, left %v", err, z.FS)
	}
	for _, dir := range []string{"/srv", "/mnt/y"} {
		if err := Remove(&z, "fs", []string{"dir=" + dir}); err != nil {
			t.Error(err)
		}
	}
	if z.FS != nil {
		t.Errorf("left %v", z.FS)
	}
	if err := Remove(&z, "fs", []string{"dir=/srv"}); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("of none: %v", err)
	}
	if diff := cmp.Diff(want, copied.FS); diff != "" {
		t.Errorf("a copy changed with it: %s", diff)
	}
}

func TestAddRefuses(t *testing.T) {
	have := Zone{FS: []FS{{Dir: "/srv", Special: "/data"}}}
	for _, tt := range []struct{ list, words, want string }{
		{"sf", "dir=/a", "sf: is no list; allowed: fs, device"},
		{"device", "match=/etc/passwd", `device: match: "/etc/passwd" does not lie below /dev`},
		{"device", "match=/dev/[", "is no pattern"},
		{"device", "match=/dev/../etc", "is no such path"},
		{"device", "match=tun", "is no such path"},
		{"fs", "dir=/a", "fs: needs special: an absolute path"},
		{"fs", "special=/a", "fs: needs dir: an absolute path"},
		{"fs", "dir=/srv special=/b", `fs: has two entries with dir "/srv"`},
		{"fs", "dir=/a specail=/b", `unknown field "specail"; did you mean special?`},
		{"fs", "dir=a special=/b", `fs: dir: "a" is no such path; allowed: an absolute path`},
		{"fs", "dir=/ special=/b", "is no such path"},
		{"fs", "dir=/a/../b special=/b", "is no such path"},
		{"fs", "dir=/a/ special=/b", "is no such path"},
		{"fs", "dir=/proc/x special=/b", "lies in /proc"},
		{"fs", "dir=/run/host/zone special=/b", "lies in /run/host"},
		{"fs", "dir=/a special=/dev", "lies in /dev"},
		{"fs", "dir=/a special=/run/lock", "lies in /run"},
		{"fs", "dir=/a special=/b;c", "semicolon"},
		{"fs", "dir=/a special=/b type=zfs", `type: "zfs" is no such choice; allowed: "lofs"`},
		{"fs", "dir=/a special=/b options=rx", `options: "rx" is no such choice; allowed: "ro" or "rw"`},
	} {
		z := have
		err := Add(&z, tt.list, strings.Fields(tt.words))
		if !errdefs.Is(err, errdefs.Usage) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.list, tt.words, err, tt.want)
		}
		if diff := cmp.Diff(have, z); diff != "" {
			t.Errorf("%s: changed all the same: %s", tt.words, diff)
		}
	}
	if err := Add(&have, "fs", []string{"dir=/a b", "special=/c"}); err == nil || !strings.Contains(err.Error(), "space") {
		t.Errorf("a space: %v", err)
	}
}

func TestParseLists(t *testing.T) {
	const good = "[[fs]]\ndir = \"/srv\"\nspecial = \"/data\"\noptions = [\"rw\"]\n\n[[fs]]\ndir = \"/b\"\nspecial = \"/c\"\n"
	z, err := Parse("z.toml", []byte(good))
	if diff := cmp.Diff([]FS{{Dir: "/srv", Special: "/data", Options: "rw"}, {Dir: "/b", Special: "/c"}}, z.FS); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if back, err := Parse("z.toml", Render(z)); err != nil || cmp.Diff(z, back) != "" {
		t.Errorf("reads back as %+v, %v", back, err)
	}
	for _, tt := range []struct{ in, want string }{
		{good + "specail = \"/x\"\n", `z.toml:9: fs[2]: unknown field "specail"; did you mean special?`},
		{good + "type = 5\n", `z.toml:9: fs[2].type: is no text; allowed: "lofs", in quotes`},
		{good + "options = [\"ro\", \"rw\"]\n", `z.toml:9: fs[2].options: is no text`},
		{strings.Replace(good, `"/b"`, `"/proc"`, 1), `z.toml:7: fs[2].dir: "/proc" lies in /proc; allowed:`},
		{strings.Replace(good, `"/b"`, `"/srv"`, 1), `z.toml:1: fs: has two entries with dir "/srv"`},
		{strings.Replace(good, `special = "/c"`, ``, 1), `z.toml:6: fs[2]: needs special: an absolute path`},
		{strings.Replace(good, `"/data"`, `"/a; dir=/c special=/d"`, 1), `z.toml:3: fs[1].special: "/a; dir=/c special=/d" is no such path`},
		{"[fs]\ndir = \"/srv\"\n", "z.toml:1: fs: is written as tables [[fs]]"},
		{"fs = \"dir=/srv special=/data\"\n", "z.toml:1: fs: is written as tables [[fs]]"},
		{"fs = [5]\n", "z.toml:1: fs: is written as tables [[fs]]"},
		{"fs = []\n", "z.toml:1: fs: is written as tables [[fs]]"},
	} {
		if _, err := Parse("z.toml", []byte(tt.in)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("Parse(%q)\n got %v\nwant %s", tt.in, err, tt.want)
		}
	}
	if _, err := Parse("z.toml", []byte("fs = [{ dir = \"/srv\", special = \"/data\" }]\n")); err != nil {
		t.Errorf("inline: %v", err)
	}
}
