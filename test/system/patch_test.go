package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPatchMany patches zones of all kinds at once, and again.
func TestPatchMany(t *testing.T) {
	t.Parallel()
	l := newPatchLab(t)
	all := []string{"p1", "p2", "p3", "p4", "p5", "p6"}
	halted := all[3:]
	l.clones(t, all...)
	for _, z := range all {
		l.install(z, patchDaemon("1.0"))
	}
	l.m.Must(append([]string{"halt"}, halted...)...)
	before := l.m.Zones()
	lists := l.m.Exec("p1", "ls -lR --full-time /var/lib/apt/lists /var/cache/apt; ls -a /tmp /run /run/host/zone")

	l.repo.publish(t, patchPlain("2.0"), patchSecond("2.0"), patchDaemon("2.0"))
	l.patchDryRun(t, all)
	dry, _ := l.repo.counts()
	if dry[patchPlain("2.0").file()] != 0 {
		t.Error("a dry run fetches packages")
	}
	l.repo.publish(t, patchPlain("2.0"), patchSecond("2.0"), patchDaemon("2.0"))
	rep := l.patch(t, 0, append([]string{"--jobs", "3"}, all...)...)
	l.patchedAll(t, rep, all)
	l.unchangedState(t, before, all...)
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-second": "2.0", "zt-daemon": "2.0"}, all...)
	if now := l.m.Exec("p1", "ls -lR --full-time /var/lib/apt/lists /var/cache/apt; ls -a /tmp /run /run/host/zone"); now != lists {
		t.Errorf("p1 changed where it should not:\n%s\nbefore:\n%s", now, lists)
	}
	l.nothingShared(t, "tank")
	l.nothingOfTheRun(t, rep, all)
	l.patchIsolation(t)

	l.m.Must(append([]string{"boot"}, halted...)...)
	for _, z := range all {
		want := "0"
		if slices.Contains(halted, z) {
			want = "101" // nothing may be started in a zone that is not running
		}
		if got := l.m.Exec(z, "dpkg --audit; cat /etc/zt/policy"); got != want {
			t.Errorf("%s: audit and policy are %q, want %q", z, got, want)
		}
	}
	again := l.patch(t, 0, all...)
	for _, z := range all {
		if r := again.zone(z); r.Result != "up-to-date" || r.Snapshot != "" {
			t.Errorf("second run: %+v", r)
		}
		if s := l.snapshots(z); len(s) != 1 {
			t.Errorf("%s has snapshots %v", z, s)
		}
	}
}

// patchDryRun checks that a dry run tells the plan and changes nothing.
func (l *patchLab) patchDryRun(t *testing.T, all []string) {
	t.Helper()
	before := l.m.Zones()
	dry := l.patch(t, 0, append([]string{"--dry-run"}, all...)...)
	for _, z := range all {
		if r := dry.zone(z); r.Result != "pending" || len(r.Packages) != 3 || r.Packages[0].New != "2.0" {
			t.Errorf("dry run: %+v", r)
		}
		if s := l.snapshots(z); len(s) != 0 {
			t.Errorf("dry run: %s has snapshots %v", z, s)
		}
	}
	l.unchangedState(t, before, all...)
	l.has(t, map[string]string{"zt-daemon": "1.0"}, all...)
	if runs := l.m.Must("patch", "list", "-q"); runs != "" {
		t.Errorf("a dry run is listed: %q", runs)
	}
	l.nothingShared(t, "tank")
}

// patchedAll checks the report of a run in which all went well.
func (l *patchLab) patchedAll(t *testing.T, rep patchReport, all []string) {
	t.Helper()
	counts, sent := l.repo.counts()
	for file, n := range counts {
		if n != 1 {
			t.Errorf("%s was fetched %d times", file, n)
		}
	}
	if len(counts) != 5 {
		t.Errorf("fetched %v", counts)
	}
	if rep.State != "finished" || rep.Packages != 3*len(all) || rep.BytesFetched != sent || len(rep.RolledBack) != 0 {
		t.Errorf("report: %+v; sent %d bytes", rep, sent)
	}
	if rep.SpeedUp <= 0 || rep.Method == "" || rep.Wall <= 0 || rep.CPU <= 0 {
		t.Errorf("report: speed-up %f by %q, wall %f s, CPU %f s", rep.SpeedUp, rep.Method, rep.Wall, rep.CPU)
	}
	for _, name := range all {
		z := rep.zone(name)
		if z.Result != "patched" || z.Downtime != 0 || len(z.Packages) != 3 || z.Packages[0].Old != "1.0" || z.Packages[0].New != "2.0" {
			t.Errorf("report of %s: %+v", name, z)
		}
		if s := l.snapshots(name); !slices.Equal(s, []string{"patch-" + rep.Run}) {
			t.Errorf("%s has snapshots %v", name, s)
		}
	}
	if list := l.m.Must("patch", "list", "-q"); strings.TrimSpace(list) != rep.Run {
		t.Errorf("patch list: %q", list)
	}
	for _, want := range append([]string{rep.Run, "one by one"}, all...) {
		if show := l.m.Must("patch", "show", rep.Run); !strings.Contains(show, want) {
			t.Errorf("patch show does not say %q:\n%s", want, show)
		}
	}
}

// nothingOfTheRun checks that the files a zone has now and had not before all
// belong to packages or their database.
func (l *patchLab) nothingOfTheRun(t *testing.T, rep patchReport, zones []string) {
	t.Helper()
	const script = `cd "$1" && find "$2/upper" -printf '%P\n' | sort >/dev/shm/$$.a && find active/upper -printf '%P\n' | sort | comm -13 /dev/shm/$$.a -; rm /dev/shm/$$.a`
	for _, z := range zones {
		out := l.m.Inside("sh", "-c", script, "sh", l.m.PoolPath("tank", "zones/"+z), "@patch-"+rep.Run)
		for _, path := range strings.Fields(out) {
			if !patchMayLeave(path) {
				t.Errorf("%s: the run left %s", z, path)
			}
		}
	}
}

// patchMayLeave tells what packages and their managers write from what a run
// has to clear away. A directory that a file was in for a time stays behind in
// the zone's own layer.
func patchMayLeave(path string) bool {
	switch path {
	case "usr/sbin", "var/lib/apt", "var/lib/apt/extended_states":
		return true
	}
	return !strings.HasSuffix(path, ".deb") &&
		slices.ContainsFunc([]string{"usr/share/zt/", "var/lib/dpkg/", "var/log/", "etc/zt/"}, func(dir string) bool {
			return strings.HasPrefix(path+"/", dir)
		})
}

// patchIsolation checks that a zone cannot change what other zones are shown.
func (l *patchLab) patchIsolation(t *testing.T) {
	t.Helper()
	for _, script := range []string{
		"touch /run/host/zone/x", "mkdir /run/host/zone/lists", "mount -o remount,rw /run/host/zone",
		"mount -o remount,bind,rw /run/host/zone", "umount /run/host/zone && touch /run/host/zone/x",
	} {
		if r := l.m.Try("exec", "p1", "--", "sh", "-c", script); r.Code == 0 {
			t.Errorf("a zone may %q", script)
		}
	}
}

// TestPatchBroken has a package that breaks in some zones only.
func TestPatchBroken(t *testing.T) {
	t.Parallel()
	l := newPatchLab(t)
	all := []string{"b1", "b2", "b3", "b4", "b5", "b6"}
	l.clones(t, all...)
	for _, z := range all[:3] {
		l.install(z, patchActor("1.0"))
		l.m.Exec(z, "touch /etc/zt/break; echo kept >/root/data")
	}
	l.m.Must("halt", "b3", "b6")
	// Whole roots, of which no part is shared.
	for _, z := range []string{"w1", "w2"} {
		l.m.Must("create", z, "--set", "root=whole")
		l.m.Must("boot", z)
		l.prepare(z)
		l.install(z, patchPlain("1.0"), patchActor("1.0"))
	}
	l.m.Exec("w1", "touch /etc/zt/break")
	l.repo.publish(t, patchPlain("2.0"), patchSecond("2.0"), patchActor("2.0"))
	before := l.m.Zones()
	rep := l.patch(t, 3, "--all", "--jobs", "4")
	if z := rep.zone("tmpl"); z.Result != "patched" {
		t.Errorf("--all leaves tmpl out: %+v", z)
	}
	for _, z := range all[:3] {
		l.results(t, rep, map[string]string{z: "rolled-back"})
		rep.reason(t, z, "upgrade packages", "zt-actor", "error exit status 1")
		if out := strings.Join(rep.zone(z).Output, "\n"); !strings.Contains(out, "broken on purpose") {
			t.Errorf("%s: the report does not show what the package said: %q", z, out)
		}
		if out := strings.Join(rep.zone(z).Output, ""); strings.ContainsAny(out, "\r\n\x1b") {
			t.Errorf("%s: control characters in the report: %q", z, out)
		}
		if s := l.snapshots(z); !slices.Contains(s, "failed-"+rep.Run) || rep.zone(z).Kept != "failed-"+rep.Run {
			t.Errorf("%s has snapshots %v, the report names %q", z, s, rep.zone(z).Kept)
		}
		mark := l.m.PoolPath("tank", fmt.Sprintf("zones/%s/@failed-%s/upper/etc/zt/actor", z, rep.Run))
		if got := l.m.Inside("cat", mark); got != "2.0\n" {
			t.Errorf("the kept root of %s is not the one that failed: %q", z, got)
		}
	}
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-second": "1.0", "zt-actor": "1.0"}, all[:3]...)
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-second": "2.0"}, all[3:]...)
	l.results(t, rep, map[string]string{"w1": "rolled-back", "w2": "patched", "b4": "patched", "b5": "patched", "b6": "patched"})
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-actor": "1.0"}, "w1")
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-actor": "2.0"}, "w2")
	l.m.Expect("w1", "running")
	l.unchangedState(t, before, "b3", "b4", "b5", "b6", "w2")
	for _, z := range []string{"b1", "b2"} {
		l.m.Expect(z, "running")
		if got := l.m.Exec(z, "dpkg --audit; cat /root/data /etc/zt/actor"); got != "kept\n1.0" {
			t.Errorf("%s: %q", z, got)
		}
		if rep.zone(z).Downtime <= 0 {
			t.Errorf("%s was rolled back without a downtime", z)
		}
	}
	l.nothingShared(t, "tank")

	// Without the cause, the rest of the run can be done.
	for _, z := range []string{"b1", "b2"} {
		l.m.Exec(z, "rm /etc/zt/break")
	}
	l.m.Must("delete", "-F", "w1")
	again := l.patch(t, 3, "--resume", rep.Run)
	l.results(t, again, map[string]string{"b1": "patched", "b2": "patched", "b3": "rolled-back"})
	if len(again.Zones) != 4 || again.zone("w1").Result != "skipped" {
		t.Errorf("resumed for %d zones, and w1, which is gone, is %+v", len(again.Zones), again.zone("w1"))
	}
	l.m.Must("boot", "b3")
	l.m.Exec("b3", "rm /etc/zt/break")
	l.patchRollback(t, again.Run, "b1", "b2")
	l.patchOffline(t, "b1", "b4", "b3")
}

// patchRollback takes zones back from a run that went well.
func (l *patchLab) patchRollback(t *testing.T, run, zone, other string) {
	t.Helper()
	old := l.m.Expect(zone, "running").PID
	l.m.Exec(zone, "echo later >/root/later")
	l.m.Refused(10, []string{"no such run"}, "patch", "rollback", "20000101-000000-aaaa")
	l.m.Refused(10, []string{"not in this run", "tmpl"}, "patch", "rollback", run, "tmpl")
	out := l.m.Must("patch", "rollback", run, zone)
	if !strings.Contains(out, zone+" ") || strings.Contains(out, other+" ") {
		t.Errorf("patch rollback prints %q", out)
	}
	if z := l.m.Expect(zone, "running"); z.PID == old {
		t.Errorf("%s was rolled back under its first process", zone)
	}
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-actor": "1.0"}, zone)
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-actor": "2.0"}, other)
	if got := l.m.Exec(zone, "dpkg --audit; cat /root/data; ls /root/later 2>&1 || true"); !strings.HasPrefix(got, "kept") || !strings.Contains(got, "No such") {
		t.Errorf("%s after rollback: %q", zone, got)
	}
	kept := slices.IndexFunc(l.snapshots(zone), func(s string) bool { return strings.HasPrefix(s, "before-rollback-") })
	if kept < 0 {
		t.Fatalf("%s keeps no snapshot of what it was: %v", zone, l.snapshots(zone))
	}
	file := l.m.PoolPath("tank", fmt.Sprintf("zones/%s/@%s/upper/root/later", zone, l.snapshots(zone)[kept]))
	if got := l.m.Inside("cat", file); got != "later\n" {
		t.Errorf("the kept root holds %q", got)
	}
}

// patchOffline halts running zones for their patch: one goes well, one has
// nothing to do and stays up, one is broken.
func (l *patchLab) patchOffline(t *testing.T, good, current, broken string) {
	t.Helper()
	l.m.Exec(broken, "touch /etc/zt/break")
	before := l.m.Zones()
	rep := l.patch(t, 3, "--strategy", "offline", good, current, broken)
	l.results(t, rep, map[string]string{good: "patched", current: "up-to-date", broken: "rolled-back"})
	l.unchangedState(t, before, current)
	for _, z := range []string{good, broken} {
		if now := l.m.Expect(z, "running"); now.PID == before[z].PID {
			t.Errorf("%s was not halted", z)
		}
		if rep.zone(z).Downtime <= 0 {
			t.Errorf("%s has no downtime", z)
		}
	}
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-actor": "2.0"}, good)
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-actor": "1.0"}, broken)
}
