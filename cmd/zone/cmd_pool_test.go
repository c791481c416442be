package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/storage"
	"zone/internal/ui"
)

// poolApp is an app whose home is the test's, with what it prints.
func poolApp(t *testing.T) (a *app, stdout, stderr *bytes.Buffer) {
	t.Helper()
	base := t.TempDir()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return &app{
		home: filepath.Join(base, "home"), run: filepath.Join(base, "run"), format: ui.FormatTable,
		stdin: strings.NewReader("y\n"), stdout: stdout, stderr: stderr,
	}, stdout, stderr
}

func makePool(t *testing.T, a *app, name string, datasets ...string) {
	t.Helper()
	ctx := context.Background()
	if err := poolCreate(ctx, a, storage.Spec{Name: name, Backend: "dir"}); err != nil {
		t.Fatal(err)
	}
	p, err := a.pools().Open(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range datasets {
		if err := p.Create(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
}

// runningZones are the zones that run.
type runningZones map[string]bool

func (r runningZones) ZoneRunning(_ context.Context, name string) (bool, error) {
	is, ok := r[name]
	if !ok {
		return false, errdefs.New(errdefs.NotFound, name, "no such zone")
	}
	return is, nil
}

func (r runningZones) open(context.Context) (zoneStates, error) { return r, nil }

func TestPoolStatus(t *testing.T) {
	a, stdout, stderr := poolApp(t)
	makePool(t, a, "tank", "zones/web1/active", "images/debian@1")
	if stdout.Len() > 0 || !strings.Contains(stderr.String(), "pool tank made") {
		t.Errorf("create printed %q and %q", stdout, stderr)
	}
	if err := poolStatus(context.Background(), a, []string{"tank"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name:        tank\n", "state:       ready\n", "zones:       web1\n", "images:      debian@1\n"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	stdout.Reset()
	a.format = ui.FormatJSON
	if err := poolStatus(context.Background(), a, nil); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema int       `json:"schema"`
		Pools  []poolRow `json:"pools"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || got.Schema != 1 || len(got.Pools) != 1 || got.Pools[0].Size == 0 {
		t.Errorf("%v in %s", err, stdout)
	}
	if err := poolStatus(context.Background(), a, []string{"tnak"}); !errdefs.Is(err, errdefs.NotFound) || !strings.Contains(err.Error(), "status of pool tnak") {
		t.Errorf("unknown pool: %v", err)
	}
}

func TestPoolDestroyRefuses(t *testing.T) {
	a, stdout, _ := poolApp(t)
	ctx := context.Background()
	makePool(t, a, "empty")
	makePool(t, a, "full", "zones/web1/active", "images/debian@1")
	halted, running := runningZones{"web1": false}, runningZones{"web1": true}
	for _, c := range []struct {
		pool  string
		zones runningZones
		opt   destroyOptions
		kind  errdefs.Kind
		says  string
	}{
		{"empty", nil, destroyOptions{}, errdefs.Usage, "terminal"},
		{"full", halted, destroyOptions{}, errdefs.WrongState, "zones web1; images debian@1"},
		{"full", running, destroyOptions{}, errdefs.Busy, "web1"},
		{"full", running, destroyOptions{force: true}, errdefs.Busy, "web1"},
		{"none", nil, destroyOptions{force: true}, errdefs.NotFound, "destroy pool none"},
		{"../x", nil, destroyOptions{force: true}, errdefs.Usage, "not a pool name"},
	} {
		err := poolDestroy(ctx, a, c.zones.open, c.pool, c.opt)
		if !errdefs.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %+v: %v, want kind %d saying %q", c.pool, c.opt, err, c.kind, c.says)
		}
	}
	if err := poolDestroy(ctx, a, halted.open, "full", destroyOptions{dryRun: true}); err != nil ||
		!strings.Contains(stdout.String(), "would remove zone web1\n") {
		t.Errorf("dry run: %v, %q", err, stdout)
	}
	if names, err := a.pools().Names(); err != nil || len(names) != 2 {
		t.Errorf("pools left: %v, %v", names, err)
	}
	for _, name := range []string{"full", "empty"} {
		if err := poolDestroy(ctx, a, runningZones{}.open, name, destroyOptions{force: true}); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(a.home, "pools")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestPoolSpec(t *testing.T) {
	var s storage.Spec
	if err := completeSpec(&s, []string{"/dev/sdb"}, "1.5G"); err != nil || s.Size != 3<<29 || s.Devices[0] != "/dev/sdb" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, size := range []string{"12Q", "-1", "0", "x"} {
		if err := completeSpec(&s, nil, size); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("size %s: %v", size, err)
		}
	}
}
