package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

// patchLab is an installation with a package source and a zone to clone,
// tmpl, that has packages of version 1.0 from it. Each of them does as files
// below /etc/zt in a zone tell it to, so that zones meet different fates.
type patchLab struct {
	t    *testing.T
	m    *machine.Machine
	repo *patchRepo
}

// patchPlain and its like are the packages of the tests.
func patchPlain(version string) patchDeb { return patchDeb{name: "zt-plain", version: version} }

func patchSecond(version string) patchDeb { return patchDeb{name: "zt-second", version: version} }

// patchDaemon notes whether services may be started.
func patchDaemon(version string) patchDeb {
	return patchDeb{name: "zt-daemon", version: version, postinst: `mkdir -p /etc/zt
code=0; [ ! -x /usr/sbin/policy-rc.d ] || /usr/sbin/policy-rc.d zt start || code=$?
echo $code >/etc/zt/policy`}
}

// patchActor does what the zone wants: break, wait, fall sick.
func patchActor(version string) patchDeb {
	return patchDeb{name: "zt-actor", version: version, postinst: `cd /etc/zt 2>/dev/null || exit 0
echo ` + version + ` >actor
if [ -e break ]; then echo "this package is broken on purpose" >&2; exit 1; fi
if [ -e sicken ]; then touch sick; fi
if [ -e slow ]; then touch /run/zt-waiting; sleep "$(cat slow)"; fi`}
}

func patchConf(version string) patchDeb {
	return patchDeb{
		name: "zt-conf", version: version, conffiles: []string{"/etc/zt/conf"},
		files: map[string]string{"/etc/zt/conf": "shipped with " + version + "\n"},
	}
}

func newPatchLab(t *testing.T) *patchLab {
	t.Helper()
	m := machine.New(t, hosttest.Tool("dpkg-deb"))
	m.BaseImage()
	l := &patchLab{t: t, m: m, repo: newPatchRepo(t)}
	m.Must("create", "tmpl", "--image", "base")
	m.Must("boot", "tmpl")
	l.prepare("tmpl")
	l.install("tmpl", patchPlain("1.0"), patchSecond("1.0"))
	m.Must("halt", "tmpl")
	return l
}

// on returns the same installation for a test within the test.
func (l *patchLab) on(t *testing.T) *patchLab {
	t.Helper()
	return &patchLab{t: t, m: l.m.On(t), repo: l.repo}
}

// prepare makes our repository the zone's only source.
func (l *patchLab) prepare(zone string) {
	l.t.Helper()
	var network struct{ Subnet netip.Prefix }
	data, err := os.ReadFile(filepath.Join(l.m.Home, "network.json"))
	if err == nil {
		err = json.Unmarshal(data, &network)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.m.Exec(zone, fmt.Sprintf(`echo 'deb [trusted=yes] http://%s:%d ./' >/etc/apt/sources.list
rm -f /etc/apt/apt.conf.d/70debconf; mkdir -p /etc/zt`, network.Subnet.Masked().Addr().Next(), l.repo.port()))
}

// install puts packages into a running zone with dpkg.
func (l *patchLab) install(zone string, debs ...patchDeb) {
	l.t.Helper()
	files := map[string][]byte{}
	for _, d := range debs {
		files[d.file()] = d.build(l.t)
	}
	const script = `set -e; mkdir /tmp/zt; cd /tmp/zt; tar -x; dpkg -i *.deb; cd /; rm -r /tmp/zt`
	if r := l.m.TryInput(patchTar(l.t, files), "exec", zone, "--", "sh", "-c", script); r.Code != 0 {
		l.t.Fatalf("install in %s: %s%s", zone, r.Stdout, r.Stderr)
	}
}

// clones makes running copies of tmpl and removes them with the test.
func (l *patchLab) clones(t *testing.T, names ...string) {
	t.Helper()
	l.m.Must(append([]string{"clone", "tmpl"}, names...)...)
	t.Cleanup(func() {
		if r := l.m.Try(append([]string{"delete", "-F"}, names...)...); r.Code != 0 {
			t.Errorf("delete: %s", r.Stderr)
		}
	})
	l.m.Must(append([]string{"boot"}, names...)...)
}

// patchReport is what these tests read of a report.
type patchReport struct {
	Run, State   string
	Packages     int
	BytesFetched int64   `json:"bytes_fetched"`
	Wall         float64 `json:"wall_seconds"`
	CPU          float64 `json:"cpu_seconds"`
	SpeedUp      float64 `json:"speed_up"`
	Method       string  `json:"sequential_method"`
	RolledBack   []string
	Zones        []patchZone
}

type patchZone struct {
	Zone, Result, Reason, Strategy, Snapshot, Health string
	Kept                                             string `json:"kept_snapshot"`
	Output                                           []string
	Downtime                                         float64  `json:"downtime_seconds"`
	KeptBack                                         []string `json:"kept_back"`
	Packages                                         []struct{ Name, Old, New string }
}

// zone returns a zone's part of the report.
func (r patchReport) zone(name string) patchZone {
	for _, z := range r.Zones {
		if z.Zone == name {
			return z
		}
	}
	return patchZone{}
}

// patchBackground is a `zone patch` that goes on.
type patchBackground struct {
	*exec.Cmd
	out, errs bytes.Buffer
}

// start begins `zone patch` without waiting for its end.
func (l *patchLab) start(t *testing.T, args ...string) *patchBackground {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	b := &patchBackground{Cmd: l.m.Command(ctx, append([]string{"patch", "--json"}, args...)...)}
	b.Stdout, b.Stderr = &b.out, &b.errs
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

// end waits for the end of the run, which has to be the exit code with a
// report.
func (b *patchBackground) end(t *testing.T, code int) patchReport {
	t.Helper()
	_ = b.Wait()
	if got := b.ProcessState.ExitCode(); got != code {
		t.Errorf("zone patch: exit code %d, want %d\n%s", got, code, b.errs.String())
	}
	var rep patchReport
	if err := json.Unmarshal(b.out.Bytes(), &rep); err != nil {
		t.Fatalf("report: %v\n%s%s", err, b.out.String(), b.errs.String())
	}
	return rep
}

// patch runs `zone patch`, which has to end with the exit code.
func (l *patchLab) patch(t *testing.T, code int, args ...string) patchReport {
	t.Helper()
	return l.start(t, args...).end(t, code)
}

// results checks how zones ended: "zone result" each.
func (l *patchLab) results(t *testing.T, rep patchReport, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if z := rep.zone(name); z.Result != want[name] {
			t.Errorf("%s: %s (%s), want %s\n%s", name, z.Result, z.Reason, want[name], strings.Join(z.Output, "\n"))
		}
	}
}

// reason checks that the reason for a zone's fate says all the words.
func (r patchReport) reason(t *testing.T, zone string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(r.zone(zone).Reason, w) {
			t.Errorf("the reason for %s does not say %q: %q", zone, w, r.zone(zone).Reason)
		}
	}
}

// patchReader prints dpkg's database and the marks of our packages as the
// zone's own files have them, running or not.
const patchReader = `cd "$1" || exit 1
ls var/lib/dpkg/updates 2>/dev/null | grep -q '^[0-9]' && echo 'unfinished update'
cat var/lib/dpkg/status; echo; echo '==='
grep -H . usr/share/zt/zt-* 2>/dev/null
exit 0`

// versions returns the versions of our packages in a zone, running or halted,
// and fails the test when a package is half done: database and files disagree.
// The zone has to have a database of its own.
func (l *patchLab) versions(t *testing.T, name string) map[string]string {
	t.Helper()
	z := l.m.Zones()[name]
	own := map[string]string{"sparse": "upper", "whole": "root"}[z.Root]
	out := l.m.Inside("sh", "-c", patchReader, "sh", l.m.PoolPath(z.Pool, "zones/"+name+"/active/"+own))
	status, marks, ok := strings.Cut(out, "\n===\n")
	if !ok || strings.Contains(out, "unfinished update") {
		t.Errorf("%s: the package database is unfinished", name)
	}
	got := map[string]string{}
	for para := range strings.SplitSeq(status, "\n\n") {
		f := map[string]string{}
		for line := range strings.Lines(para) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			f[key] = value
		}
		if !strings.HasSuffix(f["Status"], " ok installed") && f["Package"] != "" {
			t.Errorf("%s: %s is %q", name, f["Package"], f["Status"])
		}
		if strings.HasPrefix(f["Package"], "zt-") {
			got[f["Package"]] = f["Version"]
		}
	}
	for line := range strings.Lines(marks) {
		file, version, _ := strings.Cut(strings.TrimSpace(line), ":")
		if pkg := filepath.Base(file); got[pkg] != version {
			t.Errorf("%s: %s is %q by its files, %q by the database", name, pkg, version, got[pkg])
		}
	}
	return got
}

// has checks the versions of packages in zones.
func (l *patchLab) has(t *testing.T, want map[string]string, zones ...string) {
	t.Helper()
	for _, name := range zones {
		got := l.versions(t, name)
		for _, pkg := range slices.Sorted(maps.Keys(want)) {
			if got[pkg] != want[pkg] {
				t.Errorf("%s: %s is at %q, want %q", name, pkg, got[pkg], want[pkg])
			}
		}
	}
}

// snapshots returns the names of a zone's snapshots.
func (l *patchLab) snapshots(zone string) []string {
	l.t.Helper()
	var names []string
	for _, s := range strings.Fields(l.m.Must("snapshots", "-q", zone)) {
		names = append(names, strings.TrimPrefix(s, zone+"@"))
	}
	return names
}

// unchangedState checks that zones are in the state they had; running ones
// with the same first process.
func (l *patchLab) unchangedState(t *testing.T, before map[string]machine.Zone, zones ...string) {
	t.Helper()
	now := l.m.Zones()
	for _, name := range zones {
		if now[name].State != before[name].State || now[name].PID != before[name].PID {
			t.Errorf("%s is %s (%d), was %s (%d)", name, now[name].State, now[name].PID, before[name].State, before[name].PID)
		}
	}
}

// nothingShared checks that no zone is shown anything of a run any more.
func (l *patchLab) nothingShared(t *testing.T, pool string) {
	t.Helper()
	const script = `cd "$1" && for d in tmp trash shared/zones/* shared/store/lists; do [ ! -d "$d" ] || find "$d" -mindepth 1 ! -name '*.lock'; done`
	if left := l.m.Inside("sh", "-c", script, "sh", l.m.PoolPath(pool, "")); left != "" {
		t.Errorf("left in pool %s:\n%s", pool, left)
	}
}

// waiting waits until the slow package in a zone is in the middle of it.
func (l *patchLab) waiting(t *testing.T, zone string) {
	t.Helper()
	until(t, 40*time.Second, zone+" installs the slow package", func() bool {
		return l.m.Try("exec", zone, "--", "test", "-e", "/run/zt-waiting").Code == 0
	})
}
