package storage_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
	"zone/internal/storage/dir"
)

func newRegistry(t *testing.T) *storage.Registry {
	t.Helper()
	base := t.TempDir()
	return &storage.Registry{
		Home: filepath.Join(base, "home"), Run: filepath.Join(base, "run"),
		Backends: map[string]storage.Backend{"dir": dir.Backend{}},
	}
}

func create(t *testing.T, r *storage.Registry, name string) storage.Pool {
	t.Helper()
	p, err := r.Create(context.Background(), storage.Spec{Name: name, Backend: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCreateListDestroy(t *testing.T) {
	r, ctx := newRegistry(t), context.Background()
	if infos, err := r.List(ctx); err != nil || len(infos) != 0 {
		t.Errorf("a new home lists %v, %v", infos, err)
	}
	create(t, r, "tank")
	create(t, r, "a.json") // no file of one pool is that of another
	create(t, r, "a")
	names, err := r.Names()
	if diff := cmp.Diff([]string{"a", "a.json", "tank"}, names); diff != "" || err != nil {
		t.Errorf("names: %s %v", diff, err)
	}
	for _, name := range names {
		p, err := r.Open(ctx, name)
		if err != nil || p.Info().Name != name || p.Info().State != storage.Ready {
			t.Fatalf("%+v, %v", p, err)
		}
		if err := r.Destroy(ctx, name); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(filepath.Join(r.Home, "pools"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestMistakes(t *testing.T) {
	r, ctx := newRegistry(t), context.Background()
	create(t, r, "tank")
	open := func(name string) error { _, err := r.Open(ctx, name); return err }
	make := func(s storage.Spec) error { _, err := r.Create(ctx, s); return err }
	for _, c := range []struct {
		what string
		err  error
		kind errdefs.Kind
		says string
	}{
		{"misspelt", open("tnak"), errdefs.NotFound, "did you mean tank?"},
		{"unknown", open("storage"), errdefs.NotFound, "there are: tank"},
		{"destroy unknown", r.Destroy(ctx, "storage"), errdefs.NotFound, "there are: tank"},
		{"second create", make(storage.Spec{Name: "tank", Backend: "dir"}), errdefs.WrongState, "exists"},
		{"unknown backend", make(storage.Spec{Name: "b", Backend: "ext4"}), errdefs.Usage, "allowed: btrfs, dir"},
		{"zfs", make(storage.Spec{Name: "b", Backend: "zfs"}), errdefs.NotSupported, "later release"},
		{"empty name", make(storage.Spec{}), errdefs.Usage, "allowed: a letter"},
		{"name with slash", open("../etc"), errdefs.Usage, "allowed: a letter"},
		{"number first", make(storage.Spec{Name: "1st"}), errdefs.Usage, "allowed: a letter"},
		{"too long", make(storage.Spec{Name: strings.Repeat("x", 64)}), errdefs.Usage, "up to 62"},
		{"control characters", r.Destroy(ctx, "a\x1b[2J"), errdefs.Usage, "allowed: a letter"},
	} {
		if !errdefs.Is(c.err, c.kind) || !strings.Contains(c.err.Error(), c.says) || strings.ContainsRune(c.err.Error(), 0x1b) {
			t.Errorf("%s: %v, want kind %d saying %q", c.what, c.err, c.kind, c.says)
		}
	}
	if err := open("tank"); err != nil {
		t.Error(err)
	}
}

// setState rewrites the record as a killed command would have left it.
func setState(t *testing.T, r *storage.Registry, name, state string) {
	t.Helper()
	path := filepath.Join(r.Home, "pools", name+".json")
	var rec map[string]any
	if err := host.ReadJSON(path, &rec); err != nil {
		t.Fatal(err)
	}
	rec["state"] = state
	data, err := json.Marshal(rec)
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestInterruptedWorkIsExplainedAndCleaned(t *testing.T) {
	for _, state := range []string{storage.Creating, storage.Destroying} {
		t.Run(state, func(t *testing.T) {
			r, ctx := newRegistry(t), context.Background()
			if err := create(t, r, "tank").Create(ctx, "old"); err != nil {
				t.Fatal(err)
			}
			setState(t, r, "tank", state)
			infos, err := r.List(ctx)
			if err != nil || len(infos) != 1 || infos[0].State != state || !strings.Contains(infos[0].Problem, "interrupted") {
				t.Errorf("list: %+v, %v", infos, err)
			}
			if _, err := r.Open(ctx, "tank"); !errdefs.Is(err, errdefs.WrongState) || errdefs.HintOf(err) == "" {
				t.Errorf("open: %v", err)
			}
			torn := filepath.Join(r.Home, "pools", ".tank.json.1234")
			if err := os.WriteFile(torn, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(create(t, r, "tank").Path("old")); err == nil {
				t.Error("the new pool holds what the interrupted one held")
			}
			if _, err := os.Stat(torn); err == nil {
				t.Error("half a record stays")
			}
			setState(t, r, "tank", state)
			if err := r.Destroy(ctx, "tank"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorkInProgressIsNotInterrupted(t *testing.T) {
	r, ctx := newRegistry(t), context.Background()
	create(t, r, "tank")
	setState(t, r, "tank", storage.Creating)
	lock, err := host.TryLock(filepath.Join(r.Home, "pools", "tank.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	infos, err := r.List(ctx)
	if err != nil || !strings.Contains(infos[0].Problem, "another command") {
		t.Errorf("list: %+v, %v", infos, err)
	}
}

func TestUnusablePoolsAreListed(t *testing.T) {
	r, ctx := newRegistry(t), context.Background()
	lost := create(t, r, "lost")
	create(t, r, "good")
	if err := os.RemoveAll(lost.Info().Path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Home, "pools", "torn.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	infos, err := r.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range infos {
		got[i.Name] = i.State
		if (i.State == storage.Ready) != (i.Problem == "") {
			t.Errorf("%+v", i)
		}
	}
	want := map[string]string{"good": storage.Ready, "lost": storage.Unavailable, "torn": storage.Unavailable}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := r.Destroy(ctx, "lost"); err != nil {
		t.Errorf("destroy of a pool whose directory is gone: %v", err)
	}
}

// failing is a backend whose Make fails after it made something.
type failing struct {
	dir.Backend
	err error
}

func (f failing) Make(ctx context.Context, rec storage.Record, at string) (storage.Pool, error) {
	_, err := f.Backend.Make(ctx, rec, at)
	return nil, errors.Join(err, f.err)
}

func TestFailedCreateIsUndone(t *testing.T) {
	r, boom := newRegistry(t), errors.New("boom")
	r.Backends["dir"] = failing{err: boom}
	if _, err := r.Create(context.Background(), storage.Spec{Name: "tank", Backend: "dir"}); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(filepath.Join(r.Home, "pools"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
