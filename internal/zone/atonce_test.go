package zone

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"zone/internal/errdefs"
)

// A clone that mends what an earlier clone of the name left must not wait for
// its own locks.
func TestCloneMendsItsForerunner(t *testing.T) {
	w := newWorld(t)
	w.Patience = time.Second
	ctx := t.Context()
	w.create(t, "a")
	put(w.upper(t, "a", "data"), "1")
	must(w.pool(t).Snapshot(ctx, "zones/a/active", "layers/0123456789ab", true))
	must(w.pool(t).Create(ctx, "tmp/e1/b/active"))
	w.journalOf(t, Entry{ID: "e1", Op: opClone, Zones: []string{"b"}}, "")
	if err := w.Clone(ctx, "a", []string{"b"}); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
}

// Clones, deletions and rollbacks of the same few zones at once end, each in
// success or in a state that explains itself, and leave the pool whole.
func TestVerbsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.Patience = 30 * time.Second
	ctx := t.Context()
	w.create(t, "a", "b")
	for _, n := range []string{"a", "b"} {
		put(w.upper(t, n, "data"), n)
		must(w.Snapshot(ctx, n, "s"))
	}
	start := time.Now()
	var group sync.WaitGroup
	try := func(what string, err error) {
		if err != nil && !errdefs.Is(err, errdefs.NotFound) && !errdefs.Is(err, errdefs.WrongState) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range 4 {
		group.Go(func() {
			for k := range 4 {
				from, to := []string{"a", "b"}[k%2], []string{"b", "c", "d"}[(i+k)%3]
				switch i {
				case 0, 1:
					try("clone", w.Clone(ctx, from, []string{to, fmt.Sprintf("x%d-%d", i, k)}))
				case 2:
					try("delete", w.Delete(ctx, to, false))
				case 3:
					try("rollback", second(w.Rollback(ctx, from, "s", fmt.Sprintf("k%d", k))))
				}
			}
		})
	}
	group.Wait()
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("they waited for each other: %s", took)
	}
	w.whole(t)
	p := w.pool(t)
	for _, n := range names(p.Path("zones")) {
		for _, l := range w.record(t, n).Layers {
			if _, err := os.Stat(filepath.Join(p.Path("layers/"+l), "upper")); err != nil {
				t.Errorf("%s: %v", n, err)
			}
		}
	}
	for _, note := range w.notes {
		t.Error(note) // nothing was cut off and nothing could not be dropped
	}
}
