package zone

import (
	"path/filepath"
	"testing"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// movable makes the pool other, and the zone b on a layer, with a snapshot and
// a boot environment, in tank.
func movable(t *testing.T, w *world) {
	cloned(t, w)
	must(w.Delete(t.Context(), "a", false))
	_, err := w.Pools.Create(t.Context(), storage.Spec{Name: "other", Backend: "dir"})
	must(err)
	must(w.CreateBE(t.Context(), BESpec{Zone: "b", Name: "good", Description: "text"}))
	put(w.upper(t, "b", "data"), "snapshot")
	must(w.Snapshot(t.Context(), "b", "s"))
	put(w.upper(t, "b", "data"), "now")
}

// holdsB checks that pool has b with everything, and the other pool nothing.
func holdsB(t *testing.T, w *world, pool string) {
	t.Helper()
	for _, n := range []string{DefaultPool, "other"} {
		p, err := w.Pools.Open(t.Context(), n)
		must(err)
		for _, d := range []string{"tmp", "trash"} {
			if left := names(p.Path(d)); len(left) > 0 {
				t.Errorf("left in %s of %s: %v", d, n, left)
			}
		}
		if n != pool {
			if left := append(names(p.Path("zones")), names(p.Path("layers"))...); len(left) > 0 {
				t.Errorf("pool %s holds %v", n, left)
			}
			continue
		}
		at := Place{p, "b"}
		for d, want := range map[string]string{"active": "now", "@s": "snapshot", "+good": "own"} {
			if got := get(filepath.Join(at.dir(), d, "upper/data")); got != want {
				t.Errorf("%s in %s holds %q, want %q", d, n, got, want)
			}
		}
		layers := names(p.Path("layers"))
		if len(layers) != 1 || get(filepath.Join(p.Path("layers"), layers[0], "upper/below")) != "layer" {
			t.Errorf("layers %v", layers)
		}
	}
	if left := names(w.journalDir()); len(left) > 0 {
		t.Errorf("journal: %v", left)
	}
}

func TestMove(t *testing.T) {
	w := newWorld(t)
	movable(t, w)
	before := w.record(t, "b")
	snaps, err := w.Snapshots(t.Context(), "b")
	must(err)
	time.Sleep(10 * time.Millisecond)
	must(w.Move(t.Context(), "b", "other"))
	holdsB(t, w, "other")
	at, err := w.Find(t.Context(), "b")
	must(err)
	after, err := readRecord(at.activePath(""))
	if err != nil || after.UUID != before.UUID || after.Address != before.Address || after.Image != before.Image {
		t.Errorf("%+v became %+v, %v", before, after, err)
	}
	moved, err := w.Snapshots(t.Context(), "b")
	if err != nil || len(moved) != 1 || !moved[0].Created.Equal(snaps[0].Created) {
		t.Errorf("snapshots %+v became %+v, %v", snaps, moved, err)
	}
	w.wantBEs(t, "b", "initial NR", "good")
	if err := w.Move(t.Context(), "b", "other"); !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("to where it is: %v", err)
	}
	if err := w.Move(t.Context(), "b", "nowhere"); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("to no pool: %v", err)
	}
	must(w.Move(t.Context(), "b", DefaultPool)) // the image is there
	holdsB(t, w, DefaultPool)
	w.whole(t)
}

func TestMoveWhole(t *testing.T) {
	w := newWorld(t)
	streams(t, w)
	w.createWhole(t, "b")
	_, err := w.Pools.Create(t.Context(), storage.Spec{Name: "other", Backend: "dir"})
	must(err)
	put(w.at(t, "b").activePath("root/data"), "x")
	must(w.Move(t.Context(), "b", "other"))
	at, err := w.Find(t.Context(), "b")
	must(err)
	if get(at.activePath("root/data")) != "x" || at.Pool.Info().Name != "other" || len(names(at.Pool.Path("images"))) > 0 {
		t.Errorf("%s in %s", get(at.activePath("root/data")), at.Pool.Info().Name)
	}
	w.whole(t)
}

func TestKilledMove(t *testing.T) {
	prepare := func(t *testing.T, w *world) { movable(t, w) }
	killEverywhere(t, []string{"move", "b", "other"}, prepare, func(t *testing.T, w *world) {
		at, err := w.Find(t.Context(), "b")
		must(err)
		holdsB(t, w, at.Pool.Info().Name)
		if at.Pool.Info().Name == DefaultPool {
			w.Runner = host.Exec{}
			must(w.Move(t.Context(), "b", "other"))
			holdsB(t, w, "other")
		}
	})
}
