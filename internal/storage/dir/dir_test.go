package dir_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/storage"
	"zone/internal/storage/dir"
	"zone/internal/storage/storagetest"
)

func newRegistry(t *testing.T) *storage.Registry {
	t.Helper()
	base := t.TempDir()
	return &storage.Registry{
		Home: filepath.Join(base, "home"), Run: filepath.Join(base, "run"),
		Backends: map[string]storage.Backend{"dir": dir.Backend{}},
	}
}

func TestSuite(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Pool {
		p, err := newRegistry(t).Create(context.Background(), storage.Spec{Name: "tank", Backend: "dir"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

func TestMistakes(t *testing.T) {
	r := newRegistry(t)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, specs := range map[errdefs.Kind][]storage.Spec{
		errdefs.Usage: {
			{Size: 1 << 30},
			{Mirror: true},
			{Devices: []string{"/dev/loop0"}},
			{Compression: "zstd"},
			{Path: "relative"},
			{Path: filepath.Join(full, "precious")},
		},
		errdefs.WrongState: {{Path: full}},
	} {
		for _, s := range specs {
			s.Name, s.Backend = "tank", "dir"
			if _, err := r.Create(context.Background(), s); !errdefs.Is(err, want) {
				t.Errorf("%+v: %v, want kind %d", s, err, want)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(full, "precious")); err != nil {
		t.Error(err)
	}
}

// A directory that was there before stays, empty, when its pool is destroyed.
func TestDestroyKeepsGivenDirectory(t *testing.T) {
	r, given, ctx := newRegistry(t), t.TempDir(), context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Backend: "dir", Path: given})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(given); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestOpenSweepsWhatTheKilledLeft(t *testing.T) {
	r, ctx := newRegistry(t), context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Backend: "dir"})
	if err != nil {
		t.Fatal(err)
	}
	dead, busy, young, trash := p.Path(".work/dead"), p.Path(".work/busy"), p.Path(".work/young"), p.Path(".trash/t")
	for _, d := range []string{dead, busy, young, trash} {
		if err := os.MkdirAll(filepath.Join(d, "tree"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, d := range []string{dead, busy} {
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(busy)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{dead: false, trash: false, busy: true, young: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: there %v, want %v", path, err == nil, want)
		}
	}
}
