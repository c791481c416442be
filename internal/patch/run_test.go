package patch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/patch/packages"
)

func setUp(t *testing.T, states map[string]string) (*Engine, *fakeZones, *fakeApt) {
	t.Helper()
	f := newFakeZones(t, states)
	apt := &fakeApt{f: f, calls: map[string]int{}}
	sum := sha256.Sum256([]byte(debText))
	debFile.SHA256 = hex.EncodeToString(sum[:])
	return &Engine{Zones: f, Drivers: []packages.Driver{apt}, Dir: filepath.Join(fastDir(t), "patch")}, f, apt
}

func fleet() map[string]string {
	return map[string]string{"r1": stateRunning, "r2": stateRunning, "h1": stateInstalled, "h2": stateInstalled}
}

func request() Request { return Request{Zones: []string{"h1", "h2", "r1", "r2"}, Jobs: 2} }

func results(rep *Report) map[string]string {
	m := map[string]string{}
	for _, z := range rep.Zones {
		m[z.Zone] = z.Result
	}
	return m
}

// wantZone checks content, state and number of boots of a zone.
func wantZone(t *testing.T, f *fakeZones, name, version, state string, boots int) {
	t.Helper()
	z := f.zones[name]
	if z.version != version || z.state != state || z.boots != boots {
		t.Errorf("%s is %s, %s, booted %d times; want %s, %s, %d", name, z.version, z.state, z.boots, version, state, boots)
	}
}

func TestRunPatchesAll(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	// Zones that take no time would be through before another begins.
	f.after = func() { f.waitForCompany(time.Second) }
	rep, err := e.Run(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	for name, state := range fleet() {
		wantZone(t, f, name, "new", state, 0)
		if got := f.zones[name].snaps["patch-"+rep.Run]; got != "old" {
			t.Errorf("%s: snapshot holds %q", name, got)
		}
	}
	if apt.calls["fetch"] != 1 || apt.calls["refresh"] != 1 {
		t.Errorf("fetched and refreshed more than once: %v", apt.calls)
	}
	if want := int64(1000 + len(debText)); rep.BytesFetched != want {
		t.Errorf("%d bytes fetched, want %d", rep.BytesFetched, want)
	}
	if rep.Packages != 4 || rep.Counts.Patched != 4 || f.busiest != 2 {
		t.Errorf("packages %d, counts %+v, at once %d", rep.Packages, rep.Counts, f.busiest)
	}
	if left, _ := filepath.Glob(filepath.Join(f.dir, "shared", "zones", "*", "*")); len(left) > 0 {
		t.Errorf("left in the zones' shared directories: %v", left)
	}
	again, err := e.Run(t.Context(), request())
	if err != nil || again.Counts.UpToDate != 4 || apt.calls["fetch"] != 1 {
		t.Errorf("second run: %v, %+v, %v", err, again.Counts, apt.calls)
	}
	for _, z := range f.zones {
		if len(z.snaps) != 1 {
			t.Errorf("a zone with nothing to do was snapshot: %v", z.snaps)
		}
	}
}

func TestOneFailureStopsNobody(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	apt.apply = func(_ context.Context, zone string) error {
		switch zone {
		case "r1":
			return errors.New("post-installation script returned error exit status 1")
		case "h1":
			return errors.New("write: No space left on device")
		}
		return nil
	}
	rep, err := e.Run(t.Context(), request())
	if !errdefs.Is(err, errdefs.Partial) {
		t.Errorf("error %v, want Partial", err)
	}
	wantZone(t, f, "r1", "old", stateRunning, 1)
	wantZone(t, f, "h1", "old", stateInstalled, 0)
	wantZone(t, f, "r2", "new", stateRunning, 0)
	wantZone(t, f, "h2", "new", stateInstalled, 0)
	if got := f.zones["r1"].snaps["failed-"+rep.Run]; got != "half" {
		t.Errorf("the failed root was not kept: %q", got)
	}
	shown, err := e.Show(rep.Run)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(shown.RolledBack); got != "[h1 r1]" {
		t.Errorf("rolled back: %s", got)
	}
	if why := shown.Zones[0].Reason; !strings.HasPrefix(why, "no space left in the zone's pool") {
		t.Errorf("reason of a full pool: %q", why)
	}
	apt.apply = nil
	again, err := e.Resume(t.Context(), rep.Run, func(*Request) {})
	if err != nil || len(again.Zones) != 2 || again.Counts.Patched != 2 {
		t.Errorf("resume: %v, %+v", err, results(again))
	}
}

func TestZoneHaltedMeanwhileStaysHalted(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	apt.apply = func(_ context.Context, zone string) error {
		if zone == "r1" {
			_ = f.Halt(context.Background(), zone)
			return errors.New("killed")
		}
		return nil
	}
	rep, err := e.Run(t.Context(), request())
	if !errdefs.Is(err, errdefs.Partial) {
		t.Error(err)
	}
	wantZone(t, f, "r1", "old", stateInstalled, 0)
	if got := results(rep)["r1"]; got != RolledBack {
		t.Errorf("r1: %s", got)
	}
}

func TestLockedPackageManagerIsSkipped(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	apt.lock = func(zone string) error {
		if zone == "r1" {
			return errdefs.New(errdefs.Busy, "lock packages", "process 7 has it")
		}
		return nil
	}
	rep, err := e.Run(t.Context(), request())
	if !errdefs.Is(err, errdefs.Partial) || results(rep)["r1"] != Skipped {
		t.Error(err, results(rep))
	}
	wantZone(t, f, "r1", "old", stateRunning, 0)
	if len(f.zones["r1"].snaps) != 0 {
		t.Error("a skipped zone has a snapshot")
	}
}

func TestHealth(t *testing.T) {
	e, f, _ := setUp(t, fleet())
	f.execHook = func(zone string, c host.Cmd) error {
		if zone == "r2" && c.Name == "/bin/sh" {
			return errors.New("unhealthy")
		}
		if zone == "r1" && c.Name == "/bin/sh" && f.zones["r1"].version == "new" {
			return errors.New("unhealthy now")
		}
		return nil
	}
	q := request()
	q.Health = "true"
	rep, err := e.Run(t.Context(), q)
	if !errdefs.Is(err, errdefs.Partial) {
		t.Error(err)
	}
	got := results(rep)
	if got["r1"] != RolledBack || got["r2"] != Skipped || got["h1"] != Patched {
		t.Errorf("%v", got)
	}
	wantZone(t, f, "r1", "old", stateRunning, 1)
}

func TestOfflineOnRunning(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	apt.apply = func(_ context.Context, zone string) error {
		time.Sleep(5 * time.Millisecond)
		if zone == "r2" {
			return errors.New("broken")
		}
		return nil
	}
	q := request()
	q.Strategy = Offline
	rep, err := e.Run(t.Context(), q)
	if !errdefs.Is(err, errdefs.Partial) {
		t.Error(err)
	}
	wantZone(t, f, "r1", "new", stateRunning, 1)
	wantZone(t, f, "r2", "old", stateRunning, 1)
	for _, z := range rep.Zones {
		if ran := strings.HasPrefix(z.Zone, "r"); ran != (z.Downtime >= 0.005) {
			t.Errorf("%s: downtime %v", z.Zone, z.Downtime)
		}
	}
}

func TestMirrorUnreachable(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	apt.refresh = func(string) error { return errors.New("could not resolve host") }
	rep, err := e.Run(t.Context(), request())
	if !errdefs.Is(err, errdefs.Failed) || rep.Counts.Skipped != 4 {
		t.Errorf("%v, %+v", err, rep.Counts)
	}
	if apt.calls["refresh"] != maxDonors {
		t.Errorf("%d zones tried", apt.calls["refresh"])
	}
	for name, state := range fleet() {
		wantZone(t, f, name, "old", state, 0)
	}
	apt.refresh = nil
	apt.fetch = func() error { return errors.New("404") }
	if rep, err = e.Run(t.Context(), request()); rep.Counts.Skipped != 4 {
		t.Errorf("%v, %+v", err, rep.Counts)
	}
}

func TestInterrupt(t *testing.T) {
	e, f, apt := setUp(t, fleet())
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	apt.apply = func(ctx context.Context, _ string) error {
		once.Do(cancel)
		<-ctx.Done()
		return ctx.Err()
	}
	rep, err := e.Run(ctx, request())
	if !errdefs.Is(err, errdefs.Interrupted) {
		t.Errorf("error %v", err)
	}
	for name, state := range fleet() {
		if z := f.zones[name]; z.version != "old" || z.state != state {
			t.Errorf("%s: %s, %s", name, z.version, z.state)
		}
	}
	if rep.Counts.Patched != 0 || rep.State != StateInterrupted {
		t.Errorf("%+v %s", rep.Counts, rep.State)
	}
}

func TestSecondRunIsBusy(t *testing.T) {
	e, _, apt := setUp(t, fleet())
	apt.fetch = func() error {
		_, err := e.Run(context.Background(), request())
		if !errdefs.Is(err, errdefs.Busy) {
			t.Errorf("second run: %v", err)
		}
		return nil
	}
	if _, err := e.Run(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
}

func TestDryRunLeavesNothing(t *testing.T) {
	e, f, _ := setUp(t, fleet())
	q := request()
	q.DryRun = true
	rep, err := e.Run(t.Context(), q)
	if err != nil || rep.Counts.Pending != 4 {
		t.Errorf("%v %+v", err, rep.Counts)
	}
	if runs, _ := e.List(); len(runs) != 0 {
		t.Errorf("%d runs kept", len(runs))
	}
	for name, state := range fleet() {
		wantZone(t, f, name, "old", state, 0)
	}
}

func TestRollback(t *testing.T) {
	e, f, _ := setUp(t, fleet())
	rep, err := e.Run(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	done, err := e.Rollback(t.Context(), rep.Run, []string{"r1"})
	if err != nil || len(done) != 1 {
		t.Fatal(done, err)
	}
	wantZone(t, f, "r1", "old", stateRunning, 1)
	if f.zones["r1"].snaps[done[0].Kept] != "new" {
		t.Errorf("what was replaced is not kept: %v", f.zones["r1"].snaps)
	}
	wantZone(t, f, "r2", "new", stateRunning, 0)
	if _, err := e.Rollback(t.Context(), rep.Run, []string{"nosuch"}); !errdefs.Is(err, errdefs.NotFound) {
		t.Error(err)
	}
	if _, err := e.Rollback(t.Context(), "nosuch", nil); !errdefs.Is(err, errdefs.NotFound) {
		t.Error(err)
	}
	if _, err := e.Rollback(t.Context(), rep.Run, nil); err != nil {
		t.Error(err)
	}
	wantZone(t, f, "h1", "old", stateInstalled, 0)
}

// TestRecover kills the tool after each write of the journal and each call to a
// zone, and recovery after each of its own, and wants every zone whole: patched or as before.
func TestRecover(t *testing.T) {
	for _, strategy := range []string{Auto, Offline} {
		t.Run(strategy, func(t *testing.T) {
			e, f, apt := setUp(t, fleet())
			apt.apply = func(_ context.Context, zone string) error {
				if zone == "h2" || zone == "r2" {
					return errors.New("broken") // so that rolling back is seen too
				}
				return nil
			}
			base := fastDir(t)
			var deaths []death
			die := func() {
				if _, err := os.Stat(filepath.Join(e.Dir, activeName)); err == nil {
					deaths = append(deaths, kill(t, e, f, base, len(deaths)))
				}
			}
			e.saved, f.after = func(string) { die() }, die
			q := request()
			q.Jobs, q.Strategy = 1, strategy
			if _, err := e.Run(t.Context(), q); !errdefs.Is(err, errdefs.Partial) {
				t.Fatal(err)
			}
			if len(deaths) < 40 {
				t.Fatalf("only %d points to die at", len(deaths))
			}
			for i, d := range deaths {
				checkRecovery(t, fmt.Sprint(i), d)
			}
		})
	}
}

type death struct {
	dir   string
	zones *fakeZones
}

func kill(t *testing.T, e *Engine, f *fakeZones, base string, n int) death {
	t.Helper()
	dir := filepath.Join(base, fmt.Sprint(n))
	if err := os.CopyFS(dir, os.DirFS(e.Dir)); err != nil {
		t.Fatal(err)
	}
	return death{dir: dir, zones: f.copy()}
}

func checkRecovery(t *testing.T, at string, d death) {
	t.Helper()
	e := &Engine{Zones: d.zones, Dir: d.dir}
	base := fastDir(t)
	var again []death
	die := func() { again = append(again, kill(t, e, d.zones, base, len(again))) }
	if !strings.Contains(at, ".") {
		e.saved, d.zones.after = func(string) { die() }, die
	}
	if err := e.Recover(t.Context(), func(string) {}); err != nil {
		t.Errorf("%s: %v", at, err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, activeName)); err == nil {
		t.Errorf("%s: the run is still active", at)
	}
	for name, state := range fleet() {
		z := d.zones.zones[name]
		if z.version != "old" && z.version != "new" || z.state != state {
			t.Errorf("%s: %s is left %s, %s", at, name, z.version, z.state)
		}
	}
	for _, b := range d.zones.breaches {
		t.Errorf("%s: %s", at, b)
	}
	for i, a := range again {
		checkRecovery(t, fmt.Sprintf("%s.%d", at, i), a)
	}
}
