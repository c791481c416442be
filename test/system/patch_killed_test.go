package system

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zone/test/machine"
)

// patchKills is how often TestPatchKilled kills a run.
const patchKills = 20

// TestPatchKilled kills runs at any moment. Whatever they were doing, the next
// command leaves each zone as it was or wholly patched, in the state it had.
func TestPatchKilled(t *testing.T) {
	t.Parallel()
	l := newPatchLab(t)
	all := []string{"k1", "k2", "k3", "k4"}
	l.clones(t, all...)
	for z, patience := range map[string]string{"k1": "0.1", "k2": "0.9", "k3": "0.1", "k4": "0.9"} {
		l.install(z, patchActor("1.0"))
		l.m.Exec(z, "echo "+patience+" >/etc/zt/slow")
	}
	l.m.Must("halt", "k3", "k4")
	before := l.m.Zones()
	host := l.m.Snapshot()
	publish := func(version string) { l.repo.publish(t, patchPlain(version), patchActor(version)) }

	publish("2.0")
	began := time.Now()
	l.patch(t, 0, append([]string{"--jobs", "4"}, all...)...)
	whole := time.Since(began)
	last := map[string]string{} // the version of each zone
	for _, z := range all {
		last[z] = "2.0"
	}
	k := &patchKilled{patchLab: l, all: all, before: before, last: last, ends: map[string]int{}}
	for i := range patchKills {
		version := fmt.Sprintf("3.%d", i)
		publish(version)
		after := time.Duration((float64(i) + rand.Float64()) / patchKills * 1.2 * float64(whole))
		// Every way of killing meets every strategy.
		strategy, children := []string{"auto", "offline"}[i%2], i/2%2 == 1
		if k.kill(t, version, after, children, "--strategy", strategy); t.Failed() {
			t.Fatalf("strategy %s killed after %s of %s, with its children: %t", strategy, after, whole, children)
		}
	}
	t.Logf("a run takes %s; zones ended: %v", whole, k.ends)
	if k.ends["rolled-back"] == 0 || k.ends["skipped"] == 0 {
		t.Errorf("the kills met no run in the middle: the test is void (%v)", k.ends)
	}
	publish("4.0")
	rep := l.patch(t, 0, all...)
	for _, z := range all {
		l.results(t, rep, map[string]string{z: "patched"})
	}
	l.has(t, map[string]string{"zt-plain": "4.0", "zt-actor": "4.0"}, all...)
	l.m.Must("boot", "k3", "k4")
	for _, z := range all {
		if out := l.m.Exec(z, "dpkg --audit; ls -d /run/zone-patch 2>/dev/null || true"); out != "" {
			t.Errorf("%s: %s", z, out)
		}
	}
	l.m.Must("halt", "k3", "k4")
	l.nothingShared(t, "tank")
	l.m.Unchanged(host)
	if _, err := os.Stat(filepath.Join(l.m.Home, "patch", "active")); err == nil {
		t.Error("a run counts as active still")
	}
}

type patchKilled struct {
	*patchLab
	all    []string
	before map[string]machine.Zone
	last   map[string]string
	ends   map[string]int
}

// kill ends one run that would bring all zones to a version and looks at what
// the next command makes of it.
func (k *patchKilled) kill(t *testing.T, version string, after time.Duration, children bool, args ...string) {
	t.Helper()
	runs := k.runs(t)
	run := k.start(t, slices.Concat([]string{"--jobs", "4"}, args, k.all)...)
	time.Sleep(after)
	pids := []int{run.Process.Pid}
	if children {
		pids = tree(run.Process.Pid)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = run.Wait()
	list := k.m.Try("list", "-c")
	if list.Code != 0 {
		t.Fatalf("zone list after the kill: %s", list.Stderr)
	}
	var rep patchReport
	if now := k.runs(t); len(now) > len(runs) {
		if err := json.Unmarshal([]byte(k.m.Must("patch", "show", "--json", now[len(now)-1])), &rep); err != nil {
			t.Fatal(err)
		}
		if rep.State != "interrupted" && rep.State != "finished" {
			t.Errorf("the killed run is %q", rep.State)
		}
	}
	now := k.m.Zones()
	for _, z := range k.all {
		k.whole(t, z, version, rep, list.Stderr)
		if now[z].State != k.before[z].State {
			t.Errorf("%s is %s after the kill, was %s\n%s", z, now[z].State, k.before[z].State, list.Stderr)
		}
		if now[z].PID != 0 {
			k.quiet(t, z, now[z].PID)
			if k.m.Try("exec", z, "--", "test", "-e", "/run/zone-patch").Code == 0 {
				t.Errorf("%s (%s) still has the directory of the run", z, rep.zone(z).Result)
			}
		}
	}
	k.nothingShared(t, "tank")
}

// whole checks that a zone is wholly at its old version or wholly at the new
// one, and that the report and the command that mended it say the same.
func (k *patchKilled) whole(t *testing.T, zone, version string, rep patchReport, said string) {
	t.Helper()
	got := k.versions(t, zone)
	r := rep.zone(zone)
	k.ends[r.Result]++
	if got["zt-plain"] != got["zt-actor"] || got["zt-plain"] != version && got["zt-plain"] != k.last[zone] {
		t.Errorf("%s is at %v, was at %s before a run to %s (%s: %s)\n%s", zone, got, k.last[zone], version, r.Result, r.Reason, said)
	}
	if (r.Result == "patched") != (got["zt-plain"] == version) {
		t.Errorf("%s is at %v, the report says %q of a run to %s", zone, got, r.Result, version)
	}
	if r.Result == "rolled-back" && !strings.Contains(said, zone+": rolled back to patch-"+rep.Run) {
		t.Errorf("that %s was rolled back is not said: %q", zone, said)
	}
	if has := slices.Contains(k.snapshots(zone), "patch-"+rep.Run); has != (r.Result == "patched" || r.Result == "rolled-back") {
		t.Errorf("%s is %q and has snapshots %v", zone, r.Result, k.snapshots(zone))
	}
	k.last[zone] = got["zt-plain"]
}

// quiet waits until no package manager is at work in a running zone.
func (k *patchKilled) quiet(t *testing.T, zone string, pid int) {
	t.Helper()
	until(t, 10*time.Second, zone+" has only its own processes", func() bool {
		return !slices.ContainsFunc(patchGroup(t, pid), func(p int) bool {
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p))
			return err == nil && strings.TrimSpace(string(comm)) != "zone-init" && p != pid
		})
	})
}

// patchGroup lists the processes in the cgroup of a process.
func patchGroup(t *testing.T, pid int) []int {
	t.Helper()
	var pids []int
	for _, p := range strings.Fields(groupFile(t, pid, "pids", "cgroup.procs", "cgroup.procs")) {
		if n, err := strconv.Atoi(p); err == nil && syscall.Kill(n, 0) == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

func (k *patchKilled) runs(t *testing.T) []string {
	t.Helper()
	return strings.Fields(k.m.Must("patch", "list", "-q"))
}
