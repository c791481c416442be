package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPatchPoolFull has a package that does not fit into the pool of one zone.
func TestPatchPoolFull(t *testing.T) {
	t.Parallel()
	l := newPatchLab(t)
	l.clones(t, "other")
	l.m.Must("pool", "create", "small", "--size", "1G")
	l.m.Must("image", "build", "small", "--pool", "small", "--from", "zone:tmpl")
	l.m.Must("create", "full", "--pool", "small", "--image", "small")
	l.m.Must("create", "beside", "--pool", "small", "--image", "small")
	l.m.Must("boot", "full", "beside")
	big := patchDeb{name: "zt-big", version: "2.0", payload: 300 << 20}
	for _, z := range []string{"full", "beside"} {
		l.install(z, patchPlain("2.0")) // nothing to do for it
		l.m.Exec(z, "echo kept >/root/data; sync")
	}
	l.install("full", patchDeb{name: "zt-big", version: "1.0"})
	filler := l.m.PoolPath("small", "filler")
	l.patchFill(filler, 120<<20)

	l.repo.publish(t, patchPlain("2.0"), big)
	before := l.m.Zones()
	rep := l.patch(t, 3, "full", "beside", "other")
	l.results(t, rep, map[string]string{"full": "rolled-back", "beside": "up-to-date", "other": "patched"})
	rep.reason(t, "full", "no space left", "pool")
	l.unchangedState(t, before, "beside", "other")
	l.m.Expect("full", "running")
	l.has(t, map[string]string{"zt-big": "1.0", "zt-plain": "2.0"}, "full")
	for _, z := range []string{"full", "beside"} {
		if got := l.m.Exec(z, "dpkg --audit; cat /root/data"); got != "kept" {
			t.Errorf("%s in the full pool: %q", z, got)
		}
	}
	if s := l.snapshots("full"); !slices.Contains(s, "failed-"+rep.Run) {
		t.Errorf("full has snapshots %v", s)
	}

	l.m.Inside("rm", filler)
	l.m.Must("snapshot", "-F", "-d", "full@failed-"+rep.Run)
	l.results(t, l.patch(t, 0, "--resume", rep.Run), map[string]string{"full": "patched"})
	l.has(t, map[string]string{"zt-big": "2.0"}, "full")
	l.nothingShared(t, "small")
	l.m.Must("delete", "-F", "full", "beside")
}

// patchFill writes a file that leaves about so many bytes of its pool free.
func (l *patchLab) patchFill(file string, left int64) {
	l.t.Helper()
	script := `set -e; dir=$(dirname "$1")
free() { sync -f "$dir"; echo $(( $(stat -f -c '%a * %S' "$dir") )); }
while n=$(( ($(free) - $2) / 1048576 )); [ $n -gt 8 ]; do dd if=/dev/zero bs=1M count=$n oflag=append conv=notrunc status=none >>"$1" || break; done; free`
	out := strings.TrimSpace(l.m.Inside("sh", "-c", script, "sh", file, fmt.Sprint(left)))
	l.t.Logf("%s bytes are left in the pool", out)
}
