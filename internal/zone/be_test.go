package zone

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
)

// bes returns the boot environments of a zone as "name active" lines.
func (w *world) bes(t *testing.T, name string) []string {
	t.Helper()
	list, err := w.BootEnvs(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, b := range list {
		lines = append(lines, strings.TrimSpace(b.Name+" "+b.Active))
	}
	return lines
}

func (w *world) wantBEs(t *testing.T, name string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, w.bes(t, name)); d != "" {
		t.Errorf("boot environments (-want +got):\n%s", d)
	}
}

// withBE makes the zone a, whose data is "new", and its boot environment b,
// whose data is "old".
func withBE(t *testing.T, w *world) {
	w.create(t, "a")
	put(w.upper(t, "a", "data"), "old")
	must(w.CreateBE(t.Context(), BESpec{Zone: "a", Name: "b", Description: "known good"}))
	put(w.upper(t, "a", "data"), "new")
}

func (w *world) beData(t *testing.T, be string) string {
	return get(filepath.Join(w.at(t, "a").dir(), "+"+be, "upper/data"))
}

func TestBELife(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	w.wantBEs(t, "a", "initial NR", "b")
	list, _ := w.BootEnvs(t.Context(), "a")
	if list[1].Description != "known good" || list[1].Zone != "a" {
		t.Errorf("%+v", list[1])
	}
	before := w.record(t, "a")
	if later, err := w.ActivateBE(t.Context(), "a", "b"); err != nil || later {
		t.Fatalf("later %v, %v", later, err)
	}
	w.wantBEs(t, "a", "initial", "b NR")
	if got := get(w.upper(t, "a", "data")); got != "old" || w.beData(t, "initial") != "new" {
		t.Errorf("active holds %q, the other %q", got, w.beData(t, "initial"))
	}
	if now := w.record(t, "a"); now.UUID != before.UUID || now.Address != before.Address || now.Name != "a" {
		t.Errorf("another identity: %+v", now)
	}
	w.whole(t)
	must(w.RenameBE(t.Context(), "a", "initial", "first"))
	must(w.RenameBE(t.Context(), "a", "b", "second"))
	w.wantBEs(t, "a", "first", "second NR")
	if _, err := w.ActivateBE(t.Context(), "a", "first"); err != nil {
		t.Fatal(err)
	}
	w.wantBEs(t, "a", "first NR", "second")
	must(w.DestroyBE(t.Context(), "a", "second"))
	w.wantBEs(t, "a", "first NR")
	w.whole(t)
}

// The configuration belongs to the zone: none comes back with an old root.
func TestBEKeepsConfiguration(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	z, err := w.LoadConfig(t.Context(), "a")
	must(err)
	z.MaxLWPs = 77
	must(writeConfig(w.at(t, "a").activePath(""), z))
	_, err = w.ActivateBE(t.Context(), "a", "b")
	must(err)
	if z, err = w.LoadConfig(t.Context(), "a"); err != nil || z.MaxLWPs != 77 {
		t.Errorf("%+v, %v", z, err)
	}
}

func TestBESources(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	must(w.Snapshot(t.Context(), "a", "b"))
	put(w.upper(t, "a", "data"), "newest")
	for from, want := range map[string]string{"": "newest", "initial": "newest", "b": "old", "@b": "new"} {
		name := "from" + strings.ReplaceAll(from, "@", "-at-")
		if err := w.CreateBE(t.Context(), BESpec{Zone: "a", Name: name, From: from}); err != nil {
			t.Fatal(err)
		}
		if got := w.beData(t, name); got != want {
			t.Errorf("from %q: %q, want %q", from, got, want)
		}
	}
	w.whole(t)
	if n := w.status(w.at(t, "a")).Snapshots; n != 1 {
		t.Errorf("%d snapshots, want 1", n)
	}
	must(w.Delete(t.Context(), "a", false))
	w.whole(t)
}

// A layer stays while only a boot environment stands on it.
func TestBEHoldsLayers(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	must(w.Clone(t.Context(), "a", []string{"c"}))
	must(w.CreateBE(t.Context(), BESpec{Zone: "c", Name: "x"}))
	must(w.Delete(t.Context(), "a", false))
	w.whole(t)
	if len(w.layers(t)) != 1 {
		t.Errorf("layers %v", w.layers(t))
	}
	must(w.Delete(t.Context(), "c", false))
	w.whole(t)
}

func TestBERollback(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	must(w.Snapshot(t.Context(), "a", "s"))
	_, err := w.ActivateBE(t.Context(), "a", "b")
	must(err)
	if _, err := w.Rollback(t.Context(), "a", "s", "kept"); err != nil {
		t.Fatal(err)
	}
	w.wantBEs(t, "a", "initial", "b NR")
	w.whole(t)
}

func TestBERefusals(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	must(w.setNext(w.at(t, "a"), w.record(t, "a"), "b"))
	w.wantBEs(t, "a", "initial N", "b R")
	ctx := t.Context()
	create := func(name, from string) error { return w.CreateBE(ctx, BESpec{Zone: "a", Name: name, From: from}) }
	activate := func(zone, name string) error { _, err := w.ActivateBE(ctx, zone, name); return err }
	for what, c := range map[string]struct {
		err  error
		kind errdefs.Kind
	}{
		"create with a bad name":      {create("../x", ""), errdefs.Usage},
		"create twice":                {create("b", ""), errdefs.WrongState},
		"create the active":           {create("initial", ""), errdefs.WrongState},
		"create from nothing":         {create("n", "none"), errdefs.NotFound},
		"create from a bad snapshot":  {create("n", "@../b"), errdefs.NotFound},
		"create from a path":          {create("n", "../active"), errdefs.NotFound},
		"create with a bad text":      {w.CreateBE(ctx, BESpec{Zone: "a", Name: "n", Description: "a\nb"}), errdefs.Usage},
		"create of no zone":           {w.CreateBE(ctx, BESpec{Zone: "x", Name: "n"}), errdefs.NotFound},
		"activate what is not there":  {activate("a", "bb"), errdefs.NotFound},
		"activate of no zone":         {activate("x", "b"), errdefs.NotFound},
		"rename to one that is there": {w.RenameBE(ctx, "a", "initial", "b"), errdefs.WrongState},
		"rename the pending":          {w.RenameBE(ctx, "a", "b", "n"), errdefs.WrongState},
		"rename to a bad name":        {w.RenameBE(ctx, "a", "b", "n/m"), errdefs.Usage},
		"destroy the active":          {w.DestroyBE(ctx, "a", "initial"), errdefs.WrongState},
		"destroy the pending":         {w.DestroyBE(ctx, "a", "b"), errdefs.WrongState},
		"destroy what is not there":   {w.DestroyBE(ctx, "a", "../active"), errdefs.NotFound},
		"snapshot for a patch":        {Maintenance{w.Service}.Snapshot(ctx, "a", "s"), errdefs.WrongState},
	} {
		if !errdefs.Is(c.err, c.kind) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	must(activate("a", "initial"))
	w.wantBEs(t, "a", "initial NR", "b")
	w.whole(t)
}

func TestBECreateUndone(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	boom := errors.New("boom")
	w.hook = func(call string) error {
		if strings.HasSuffix(call, "active done") && strings.HasPrefix(call, "Snapshot") {
			return boom
		}
		return nil
	}
	if err := w.CreateBE(t.Context(), BESpec{Zone: "a", Name: "c"}); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	w.whole(t)
	w.wantBEs(t, "a", "initial NR", "b")
}

func TestKilledBECreate(t *testing.T) {
	killEverywhere(t, []string{"be create", "a", "c", "b"}, withBE, func(t *testing.T, w *world) {
		if got := w.bes(t, "a"); len(got) == 2 {
			must(w.do(t.Context(), []string{"be create", "a", "c", "b"}))
		}
		w.wantBEs(t, "a", "initial NR", "b", "c")
		if w.beData(t, "c") != "old" {
			t.Errorf("c holds %q", w.beData(t, "c"))
		}
	})
}

func TestKilledBEActivate(t *testing.T) {
	killEverywhere(t, []string{"be activate", "a", "b"}, withBE, func(t *testing.T, w *world) {
		must(w.do(t.Context(), []string{"be activate", "a", "b"}))
		w.wantBEs(t, "a", "initial", "b NR")
		if now := get(w.upper(t, "a", "data")); now != "old" || w.beData(t, "initial") != "new" {
			t.Errorf("active %q, initial %q", now, w.beData(t, "initial"))
		}
	})
}

// The steps between which no call of a fake lies.
func TestBEActivateCutOff(t *testing.T) {
	for _, c := range []struct {
		name, step string
		at         int // how many of: prepare, exchange, rename
		want       string
	}{
		{"begin", "begin", 0, "initial NR"},
		{"prepared", "begin", 1, "initial NR"},
		{"before the exchange", stepExchange, 1, "initial NR"},
		{"exchanged", stepExchange, 2, "b NR"},
		{"renamed", stepExchange, 3, "b NR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			withBE(t, w)
			at := w.at(t, "a")
			if c.at > 0 {
				must(w.prepareBE(at, "b", "e1"))
			}
			if c.at > 1 {
				must(host.Exchange(at.activePath(""), at.Pool.Path(at.be("b"))))
			}
			if c.at > 2 {
				must(at.Pool.Rename(t.Context(), at.be("b"), at.be("initial")))
			}
			detail := ""
			if c.step == stepExchange {
				detail = "b/initial"
			}
			w.journalOf(t, Entry{ID: "e1", Op: opBEActivate, Step: c.step, Detail: detail, Zones: []string{"a"}}, "")
			must(w.Mend(t.Context()))
			w.whole(t)
			if got := strings.Join(w.bes(t, "a"), ", "); !strings.Contains(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
			var data []string
			for _, be := range []string{"b", "initial"} {
				if at.hasBE(be) {
					data = append(data, w.beData(t, be))
				}
			}
			if both := get(w.upper(t, "a", "data")) + strings.Join(data, ","); both != "newold" && both != "oldnew" {
				t.Errorf("roots hold %q", both)
			}
		})
	}
}

// When neither root can be told to be the old one, both stay.
func TestMendBEActivateKeepsWhatItCannotTell(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	put(w.at(t, "a").activePath(recordFile), "{")
	w.journalOf(t, Entry{ID: "e1", Op: opBEActivate, Step: stepExchange, Detail: "b/initial", Zones: []string{"a"}}, "")
	if err := w.Mend(t.Context()); err == nil {
		t.Error("mended what could not be told")
	}
	if len(names(w.at(t, "a").dir())) != 2 {
		t.Errorf("left: %v", names(w.at(t, "a").dir()))
	}
}

// A zone whose root was spoiled comes back with another one.
func TestBEReplacesSpoiledRoot(t *testing.T) {
	w := newWorld(t)
	withBE(t, w)
	put(w.at(t, "a").activePath(recordFile), "{")
	must(w.do(t.Context(), []string{"be activate", "a", "b"}))
	if got := get(w.upper(t, "a", "data")); got != "old" || w.beData(t, "initial") != "new" {
		t.Errorf("active %q, replaced %q", got, w.beData(t, "initial"))
	}
	if st, err := w.State(t.Context(), "a"); st != Installed {
		t.Errorf("%s, %v", st, err)
	}
}

// Booting mounts the root, so it takes root.
func TestBEActivateWhileRunning(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	w := newWorld(t)
	w.playKernel(t)
	withBE(t, w)
	must(w.Boot(t.Context(), "a"))
	if later, err := w.ActivateBE(t.Context(), "a", "b"); err != nil || !later {
		t.Fatalf("later %v, %v", later, err)
	}
	w.wantBEs(t, "a", "initial N", "b R")
	if got := get(w.upper(t, "a", "data")); got != "new" {
		t.Errorf("the running zone's root holds %q", got)
	}
	must(w.Halt(t.Context(), "a"))
	w.wantBEs(t, "a", "initial N", "b R")
	must(w.Boot(t.Context(), "a"))
	w.wantBEs(t, "a", "initial", "b NR")
	if got := get(w.upper(t, "a", "data")); got != "old" {
		t.Errorf("after the boot the root holds %q", got)
	}
	must(w.Delete(t.Context(), "a", true))
	w.whole(t)
}

func TestKilledBootIntoBE(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Overlay)
	prepare := func(t *testing.T, w *world) {
		w.playKernel(t)
		withBE(t, w)
		must(w.setNext(w.at(t, "a"), w.record(t, "a"), "b"))
	}
	killEverywhere(t, []string{"boot", "a"}, prepare, func(t *testing.T, w *world) {
		if err := w.stopped(t); err != nil {
			t.Error(err)
		}
		must(w.Boot(t.Context(), "a"))
		w.wantBEs(t, "a", "initial", "b NR")
		if got := get(w.upper(t, "a", "data")); got != "old" {
			t.Errorf("booted %q", got)
		}
		must(w.Delete(t.Context(), "a", true))
	})
}
