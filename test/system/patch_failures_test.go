package system

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPatchFailures has zones in which a run meets every kind of trouble, next
// to zones in which it must go well all the same.
func TestPatchFailures(t *testing.T) {
	t.Parallel()
	l := newPatchLab(t)
	t.Run("lock", func(t *testing.T) { l.on(t).patchLockHeld(t) })
	t.Run("one file missing", func(t *testing.T) {
		l.on(t).patchFileMissing(t, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })
	})
	t.Run("one file cut off", func(t *testing.T) { l.on(t).patchFileMissing(t, patchHangUp) })
	t.Run("source down", func(t *testing.T) { l.on(t).patchSourceDown(t) })
	t.Run("zones end", func(t *testing.T) { l.on(t).patchZonesEnd(t) })
	t.Run("hang and health", func(t *testing.T) { l.on(t).patchHangAndHealth(t) })
	t.Run("interrupt", func(t *testing.T) { l.on(t).patchInterrupt(t) })
	t.Run("daemon and little memory", func(t *testing.T) { l.on(t).patchDaemonAndMemory(t) })
	t.Run("choice of packages", func(t *testing.T) { l.on(t).patchChoice(t) })
}

var (
	patchOld = map[string]string{"zt-plain": "1.0"}
	patchNew = map[string]string{"zt-plain": "2.0"}
)

// patchHolder takes dpkg's lock as dpkg takes it and keeps it until its input
// ends.
const patchHolder = `use Fcntl qw(:DEFAULT :flock SEEK_SET F_SETLK F_WRLCK);
sysopen(my $f, "/var/lib/dpkg/lock-frontend", O_RDWR|O_CREAT) or die;
my $l = pack("s s x4 q q l x4", F_WRLCK, SEEK_SET, 0, 0, 0);
fcntl($f, F_SETLK, $l) or die "lock: $!";
$| = 1; print "locked\n"; <STDIN>;`

func (l *patchLab) patchLockHeld(t *testing.T) {
	l.clones(t, "l1", "l2", "l3")
	// A database of its own, as any zone has that was ever changed: it can be read.
	l.install("l1", patchDaemon("1.0"))
	l.repo.publish(t, patchPlain("2.0"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	holder := l.m.Command(ctx, "exec", "l1", "--", "perl", "-e", patchHolder)
	in, _ := holder.StdinPipe()
	out, _ := holder.StdoutPipe()
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("the lock in l1 was not taken: %v", err)
	}
	before := l.m.Zones()
	rep := l.patch(t, 3, "l1", "l2", "l3", "--lock-wait", "1s")
	l.results(t, rep, map[string]string{"l1": "skipped", "l2": "patched", "l3": "patched"})
	rep.reason(t, "l1", "lock", "/var/lib/dpkg/lock-frontend", "process", "1s")
	l.has(t, patchOld, "l1")
	l.has(t, patchNew, "l2", "l3")
	l.unchangedState(t, before, "l1", "l2", "l3")
	if s := l.snapshots("l1"); len(s) != 0 {
		t.Errorf("l1 has snapshots %v", s)
	}
	_ = in.Close()
	if err := holder.Wait(); err != nil {
		t.Errorf("the holder of the lock was disturbed: %v", err)
	}
	l.results(t, l.patch(t, 0, "--resume", rep.Run), map[string]string{"l1": "patched"})
	l.has(t, patchNew, "l1")
	l.nothingShared(t, "tank")
}

// patchFileMissing has a source that cannot give the one file that one zone
// needs and the others do not.
func (l *patchLab) patchFileMissing(t *testing.T, fault http.HandlerFunc) {
	l.clones(t, "n1", "n2", "n3")
	l.install("n2", patchDaemon("1.0"))
	l.repo.publish(t, patchPlain("2.0"), patchDaemon("2.0"))
	l.repo.fail(patchDaemon("2.0").file(), fault)
	l.m.Must("halt", "n3")
	before := l.m.Zones()
	rep := l.patch(t, 3, "n1", "n2", "n3")
	l.results(t, rep, map[string]string{"n1": "patched", "n2": "skipped", "n3": "patched"})
	rep.reason(t, "n2", "fetch packages", "zt-daemon_2.0")
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-daemon": "1.0"}, "n2")
	l.has(t, patchNew, "n1", "n3")
	l.unchangedState(t, before, "n1", "n2", "n3")
	l.repo.mend()
	l.results(t, l.patch(t, 0, "--resume", rep.Run), map[string]string{"n2": "patched"})
	l.nothingShared(t, "tank")
}

func (l *patchLab) patchSourceDown(t *testing.T) {
	l.clones(t, "d1", "d2")
	l.install("d1", patchDaemon("1.0"))
	l.repo.publish(t, patchPlain("2.0"))
	l.repo.fail("", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) })
	before := l.m.Zones()
	rep := l.patch(t, 1, "d1", "d2")
	for _, z := range []string{"d1", "d2"} {
		l.results(t, rep, map[string]string{z: "skipped"})
		rep.reason(t, z, "get package lists", "503")
		if s := l.snapshots(z); len(s) != 0 {
			t.Errorf("%s has snapshots %v", z, s)
		}
	}
	l.has(t, patchOld, "d1")
	l.unchangedState(t, before, "d1", "d2")
	l.nothingShared(t, "tank")
}

// patchZonesEnd ends zones in the middle of their patch: by the command, by the
// death of their first process.
func (l *patchLab) patchZonesEnd(t *testing.T) {
	l.clones(t, "h1", "h2", "h3", "h4")
	for _, z := range []string{"h1", "h2"} {
		l.install(z, patchActor("1.0"))
		l.m.Exec(z, "echo 60 >/etc/zt/slow")
	}
	l.repo.publish(t, patchPlain("2.0"), patchActor("2.0"))
	before := l.m.Zones()
	run := l.start(t, "h1", "h2", "h3", "h4", "--jobs", "4")
	l.waiting(t, "h1")
	l.waiting(t, "h2")
	l.m.Must("halt", "-F", "h1")
	if err := syscall.Kill(before["h2"].PID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	rep := run.end(t, 3)
	for _, z := range []string{"h1", "h2"} {
		l.results(t, rep, map[string]string{z: "rolled-back"})
		rep.reason(t, z, "halted while it was being patched")
		l.m.Expect(z, "installed")
	}
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-actor": "1.0"}, "h1", "h2")
	l.results(t, rep, map[string]string{"h3": "patched", "h4": "patched"})
	l.has(t, patchNew, "h3", "h4")
	l.unchangedState(t, before, "h3", "h4")
	l.m.Must("boot", "h1", "h2")
	for _, z := range []string{"h1", "h2"} {
		if out := l.m.Exec(z, "dpkg --audit"); out != "" {
			t.Errorf("%s: %s", z, out)
		}
	}
	l.nothingShared(t, "tank")
}

// patchHangAndHealth has a package that waits forever, a zone that is sick
// before and one that is sick after.
func (l *patchLab) patchHangAndHealth(t *testing.T) {
	l.clones(t, "u1", "u2", "u3", "u4")
	for _, z := range []string{"u1", "u2", "u3"} {
		l.install(z, patchActor("1.0"))
	}
	l.m.Exec("u1", "echo 300 >/etc/zt/slow")
	l.m.Exec("u2", "touch /etc/zt/sick")
	l.m.Exec("u3", "touch /etc/zt/sicken")
	l.repo.publish(t, patchPlain("2.0"), patchActor("2.0"))
	before := l.m.Zones()
	rep := l.patch(t, 3, "u1", "u2", "u3", "u4", "--jobs", "4", "--idle-timeout", "3s", "--health", "test ! -e /etc/zt/sick")
	l.results(t, rep, map[string]string{"u1": "rolled-back", "u2": "skipped", "u3": "rolled-back", "u4": "patched"})
	rep.reason(t, "u1", "said nothing for 3s")
	rep.reason(t, "u2", "health check fails already before")
	rep.reason(t, "u3", "health check fails after")
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-actor": "1.0"}, "u1", "u2", "u3")
	l.has(t, patchNew, "u4")
	if h := rep.zone("u4").Health; h != "ok" {
		t.Errorf("health of u4: %q", h)
	}
	l.unchangedState(t, before, "u2", "u4")
	for _, z := range []string{"u1", "u3"} {
		l.m.Expect(z, "running")
		if got := l.m.Exec(z, "dpkg --audit; ls /etc/zt | grep -x sick || true"); got != "" {
			t.Errorf("%s after being rolled back: %q", z, got)
		}
	}
	l.nothingShared(t, "tank")
}

// patchInterrupt presses Ctrl-C in the middle.
func (l *patchLab) patchInterrupt(t *testing.T) {
	l.clones(t, "i1", "i2")
	l.install("i1", patchActor("1.0"))
	l.install("i2", patchDaemon("1.0"))
	l.m.Exec("i1", "echo 60 >/etc/zt/slow")
	l.repo.publish(t, patchPlain("2.0"), patchActor("2.0"))
	before := l.m.Zones()
	run := l.start(t, "i1", "i2", "--jobs", "1")
	l.waiting(t, "i1")
	const archives = "/run/host/zone/archives"
	if out := strings.Fields(l.m.Exec("i1", "ls "+archives)); !slices.Equal(out, []string{"partial", patchActor("2.0").file(), patchPlain("2.0").file()}) {
		t.Errorf("i1 is shown %v", out)
	}
	for _, script := range []string{"echo x >>%s", "rm %s", "chmod 777 %s"} {
		script = fmt.Sprintf(script, archives+"/"+patchPlain("2.0").file())
		if r := l.m.Try("exec", "i1", "--", "sh", "-c", script); r.Code == 0 {
			t.Errorf("a zone may %q", script)
		}
	}
	if code := l.m.Try("patch", "i2").Code; code != 11 {
		t.Errorf("a second run beside the first: exit code %d, want 11", code)
	}
	began := time.Now()
	if err := run.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rep := run.end(t, 130)
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("the interrupt waited for the package: %s", took)
	}
	l.results(t, rep, map[string]string{"i1": "rolled-back", "i2": "skipped"})
	rep.reason(t, "i1", "interrupted")
	if rep.State != "interrupted" {
		t.Errorf("state of the run: %s", rep.State)
	}
	l.m.Expect("i1", "running")
	l.unchangedState(t, before, "i2")
	l.has(t, patchOld, "i1", "i2")
	l.nothingShared(t, "tank")
	l.m.Exec("i1", "rm /etc/zt/slow")
	l.results(t, l.patch(t, 0, "--resume", rep.Run), map[string]string{"i1": "patched", "i2": "patched"})
}

// patchDaemonAndMemory has a package that starts a daemon which keeps its output
// open, and a zone whose package uses more memory than its cap.
func (l *patchLab) patchDaemonAndMemory(t *testing.T) {
	l.clones(t, "m1", "m2", "m3")
	for _, z := range []string{"m1", "m2"} {
		l.install(z, patchDeb{name: "zt-odd", version: "1.0"})
	}
	l.m.Exec("m1", "touch /etc/zt/daemon")
	l.m.Must("halt", "m2")
	l.m.Must("config", "set", "m2", "capped-memory=96M")
	l.m.Must("boot", "m2")
	odd := patchDeb{name: "zt-odd", version: "2.0", postinst: `if [ -e /etc/zt/daemon ]; then setsid sleep 1000 & exit 0; fi
perl -e '$x = "x" x 300_000_000; print length $x'`}
	l.repo.publish(t, patchPlain("2.0"), odd)
	before := l.m.Zones()
	rep := l.patch(t, 3, "m1", "m2", "m3", "--idle-timeout", "20s")
	l.results(t, rep, map[string]string{"m1": "patched", "m2": "rolled-back", "m3": "patched"})
	l.unchangedState(t, before, "m1", "m3")
	l.has(t, map[string]string{"zt-plain": "2.0", "zt-odd": "2.0"}, "m1")
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-odd": "1.0"}, "m2")
	l.m.Expect("m2", "running")
	if out := l.m.Exec("m1", "cat /proc/[0-9]*/comm"); !slices.Contains(strings.Fields(out), "sleep") {
		t.Errorf("the daemon that the package started is gone: %q", out)
	}
	l.nothingShared(t, "tank")
}

// patchChoice excludes packages, meets one that would remove another, and a
// configuration file that was edited in the zone.
func (l *patchLab) patchChoice(t *testing.T) {
	l.clones(t, "c1")
	l.install("c1", patchConf("1.0"))
	l.m.Exec("c1", "echo mine >/etc/zt/conf")
	jealous := patchPlain("2.0")
	jealous.fields = "Conflicts: zt-second\n"
	l.repo.publish(t, jealous, patchConf("2.0"))
	rep := l.patch(t, 0, "c1", "--exclude", "zt-c*")
	l.results(t, rep, map[string]string{"c1": "up-to-date"})
	if kept := rep.zone("c1").KeptBack; !slices.Contains(kept, "zt-plain") {
		t.Errorf("kept back: %v", kept)
	}
	rep = l.patch(t, 0, "c1")
	l.results(t, rep, map[string]string{"c1": "patched"})
	if z := rep.zone("c1"); len(z.Packages) != 1 || !slices.Contains(z.KeptBack, "zt-plain") {
		t.Errorf("patched %v, kept back %v", z.Packages, z.KeptBack)
	}
	l.has(t, map[string]string{"zt-plain": "1.0", "zt-second": "1.0", "zt-conf": "2.0"}, "c1")
	if got := l.m.Exec("c1", "cat /etc/zt/conf /etc/zt/conf.dpkg-dist"); got != "mine\nshipped with 2.0" {
		t.Errorf("the edited file: %q", got)
	}
	if show := l.m.Must("patch", "show", rep.Run); !strings.Contains(show, "zt-plain") {
		t.Errorf("patch show does not name what was kept back:\n%s", show)
	}
}
