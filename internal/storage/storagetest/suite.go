package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zone/internal/errdefs"
	"zone/internal/storage"
)

// Run tests a driver. newPool makes an empty pool and cleans it up by
// t.Cleanup.
func Run(t *testing.T, newPool func(t *testing.T) storage.Pool) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, p storage.Pool)
	}{
		{"Create", testCreate},
		{"Names", testNames},
		{"Nesting", testNesting},
		{"PlainDirectory", testPlainDirectory},
		{"Snapshot", testSnapshot},
		{"SnapshotMissing", testSnapshotMissing},
		{"SnapshotOfBusyTree", testBusySnapshot},
		{"Immutable", testImmutable},
		{"Delete", testDelete},
		{"Rename", testRename},
		{"Preserved", testPreserved},
		{"Parallel", testParallel},
		{"Used", testUsed},
		{"Created", testCreated},
		{"Space", testSpace},
		{"Cancelled", testCancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newPool(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write puts a file into a dataset.
func write(t *testing.T, p storage.Pool, dataset, name, content string) {
	t.Helper()
	path := filepath.Join(p.Path(dataset), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func wantContent(t *testing.T, p storage.Pool, dataset, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(p.Path(dataset), name))
	if err != nil || string(got) != want {
		t.Errorf("%s of %s is %q, %v, want %q", name, dataset, got, err, want)
	}
}

func wantGone(t *testing.T, p storage.Pool, dataset string) {
	t.Helper()
	if _, err := os.Lstat(p.Path(dataset)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (%v)", dataset, err)
	}
}

func testCreate(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "zones/web1/active"))
	entries, err := os.ReadDir(p.Path("zones/web1/active"))
	if err != nil || len(entries) != 0 {
		t.Errorf("new dataset holds %v, %v", entries, err)
	}
	write(t, p, "zones/web1/active", "f", "1")
	if err := p.Create(ctx, "zones/web1/active"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second create: %v, want fs.ErrExist", err)
	}
	wantContent(t, p, "zones/web1/active", "f", "1")
	must(t, p.Create(ctx, "zones/web1/@one"))
	must(t, p.Create(ctx, "single"))
	st, err := os.Stat(p.Path("zones"))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("parent directory: %v, %v, want mode 0700", st.Mode(), err)
	}
}

func testNames(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "good"))
	for _, name := range []string{
		"", ".", "..", "../out", "a/../../out", "/etc", "a//b", "a/", "./a", ".hidden", "a/./b", "a\x00b", "a\nb",
		"\xff", strings.Repeat("x", 256), "a/" + strings.Repeat("y/", 600) + "z", "zones/..",
	} {
		for op, err := range map[string]error{
			"create":        p.Create(ctx, name),
			"snapshot to":   p.Snapshot(ctx, "good", name, false),
			"snapshot from": p.Snapshot(ctx, name, "other", false),
			"delete":        p.Delete(ctx, name),
			"rename from":   p.Rename(ctx, name, "other"),
			"rename to":     p.Rename(ctx, "good", name),
			"read-only":     p.SetReadOnly(ctx, name, true),
		} {
			if !errdefs.Is(err, errdefs.Usage) {
				t.Errorf("%s %.40q: %v, want a usage error", op, name, err)
			}
		}
	}
	for _, name := range []string{"-rf", "a b", "ü", "zones/@x", "a*", "$(id)", strings.Repeat("x", 255)} {
		must(t, p.Create(ctx, name))
		must(t, p.Delete(ctx, name))
	}
	wantGone(t, p, "other")
}

func testNesting(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "a/outer"))
	must(t, p.Create(ctx, "source"))
	must(t, os.Mkdir(filepath.Join(p.Path("a/outer"), "dir"), 0o755))
	for _, name := range []string{"a/outer/inner", "a/outer/dir/inner", "a/outer/new/inner"} {
		for op, err := range map[string]error{
			"create":   p.Create(ctx, name),
			"snapshot": p.Snapshot(ctx, "source", name, false),
			"rename":   p.Rename(ctx, "source", name),
			"delete":   p.Delete(ctx, name),
		} {
			if err == nil && op == "delete" && strings.Contains(name, "/new/") {
				continue // nothing is there
			}
			if !errdefs.Is(err, errdefs.Usage) {
				t.Errorf("%s %s: %v, want a usage error", op, name, err)
			}
		}
	}
	if err := p.Delete(ctx, "a/outer/dir"); err == nil {
		t.Error("a directory inside a dataset was deleted")
	}
	// A link in a dataset must lead nowhere.
	must(t, os.Symlink(p.Path("source"), filepath.Join(p.Path("a/outer"), "link")))
	if err := p.Snapshot(ctx, "a/outer/link", "stolen", false); err == nil {
		t.Error("a snapshot followed a symbolic link")
	}
}

func testPlainDirectory(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "zones/a/active"))
	for op, err := range map[string]error{
		"delete":        p.Delete(ctx, "zones"),
		"delete parent": p.Delete(ctx, "zones/a"),
		"snapshot":      p.Snapshot(ctx, "zones", "copy", false),
		"rename":        p.Rename(ctx, "zones", "moved"),
		"read-only":     p.SetReadOnly(ctx, "zones", true),
	} {
		if !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("%s of a plain directory: %v, want a usage error", op, err)
		}
	}
	if _, err := os.Stat(p.Path("zones/a/active")); err != nil {
		t.Error(err)
	}
}

func testSnapshot(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "a"))
	write(t, p, "a", "dir/file", "one")
	must(t, p.Snapshot(ctx, "a", "snaps/s", false))
	write(t, p, "a", "dir/file", "two")
	wantContent(t, p, "snaps/s", "dir/file", "one")
	write(t, p, "snaps/s", "dir/file", "three")
	wantContent(t, p, "a", "dir/file", "two")
	if err := p.Snapshot(ctx, "a", "snaps/s", false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("snapshot to a name that is taken: %v, want fs.ErrExist", err)
	}
	wantContent(t, p, "snaps/s", "dir/file", "three")
	must(t, p.Snapshot(ctx, "snaps/s", "again", true)) // a snapshot of a snapshot
	wantContent(t, p, "again", "dir/file", "three")
}

func testSnapshotMissing(t *testing.T, p storage.Pool) {
	if err := p.Snapshot(context.Background(), "none", "b", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("snapshot of nothing: %v, want fs.ErrNotExist", err)
	}
	wantGone(t, p, "b")
}

func testBusySnapshot(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "busy"))
	write(t, p, "busy", "stays", "here")
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			d := filepath.Join(p.Path("busy"), fmt.Sprint("d", i%7))
			_ = os.Mkdir(d, 0o755)
			_ = os.WriteFile(filepath.Join(d, fmt.Sprint(i%50)), make([]byte, i%5000), 0o644)
			if i%5 == 0 {
				_ = os.RemoveAll(d)
			}
		}
	})
	for i := range 10 {
		name := fmt.Sprint("snap", i)
		if err := p.Snapshot(context.Background(), "busy", name, true); err != nil {
			t.Error(err)
			break
		}
		wantContent(t, p, name, "stays", "here")
	}
	stop()
	wg.Wait()
}

func testImmutable(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "a"))
	write(t, p, "a", "f", "1")
	must(t, p.Snapshot(ctx, "a", "ro", true))
	must(t, p.SetReadOnly(ctx, "a", true))
	if err := p.SetReadOnly(ctx, "none", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read-only on nothing: %v, want fs.ErrNotExist", err)
	}
	if p.Info().Can.Immutable {
		for _, d := range []string{"ro", "a"} {
			if err := os.WriteFile(filepath.Join(p.Path(d), "f"), []byte("2"), 0o644); err == nil {
				t.Errorf("%s was written to though read-only", d)
			}
			wantContent(t, p, d, "f", "1")
		}
	}
	must(t, p.SetReadOnly(ctx, "a", false))
	write(t, p, "a", "f", "2")
	must(t, p.Snapshot(ctx, "ro", "rw", false))
	write(t, p, "rw", "f", "3")
	wantContent(t, p, "ro", "f", "1")
}

func testDelete(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Delete(ctx, "never/was"))
	must(t, p.Create(ctx, "z/a"))
	write(t, p, "z/a", "deep/er/f", "1")
	must(t, p.Snapshot(ctx, "z/a", "z/ro", true))
	for _, d := range []string{"z/ro", "z/a", "z/a"} {
		must(t, p.Delete(ctx, d))
		wantGone(t, p, d)
	}
	must(t, p.Create(ctx, "z/a"))
	if _, err := os.Stat(filepath.Join(p.Path("z/a"), "deep")); err == nil {
		t.Error("a new dataset holds what the deleted one held")
	}
}

func testRename(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "tmp/a"))
	write(t, p, "tmp/a", "f", "1")
	must(t, p.SetReadOnly(ctx, "tmp/a", true))
	must(t, p.Rename(ctx, "tmp/a", "images/a"))
	wantContent(t, p, "images/a", "f", "1")
	wantGone(t, p, "tmp/a")
	if p.Info().Can.Immutable {
		if err := os.WriteFile(filepath.Join(p.Path("images/a"), "f"), nil, 0o644); err == nil {
			t.Error("not read-only any more after a rename")
		}
	}
	must(t, p.Create(ctx, "images/b"))
	if err := p.Rename(ctx, "images/a", "images/b"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("rename to a name that is taken: %v, want fs.ErrExist", err)
	}
	if err := p.Rename(ctx, "none", "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rename of nothing: %v, want fs.ErrNotExist", err)
	}
	must(t, p.Delete(ctx, "images/a"))
}

func testParallel(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "base"))
	write(t, p, "base", "f", "1")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := fmt.Sprintf("zones/z%d/active", i)
			if err := p.Snapshot(ctx, "base", name, i%2 == 0); err != nil {
				t.Error(err)
				return
			}
			wantContent(t, p, name, "f", "1")
			if i%4 == 0 {
				if err := p.Delete(ctx, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made := make(chan bool, 20)
	for range cap(made) { // of many that want one name, one gets it
		wg.Go(func() {
			err := p.Create(ctx, "contended/one")
			made <- err == nil
			if err != nil && !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	won := 0
	for range cap(made) {
		if <-made {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of %d made the same dataset", won, cap(made))
	}
}

func testUsed(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "a"))
	before, err := p.Used(ctx, "a")
	if errdefs.Is(err, errdefs.NotSupported) && !p.Info().Can.Quota {
		return
	}
	must(t, err)
	must(t, os.WriteFile(filepath.Join(p.Path("a"), "big"), []byte(strings.Repeat("0123456789abcdef", 256<<10)), 0o644))
	must(t, p.Sync(ctx))
	after, err := p.Used(ctx, "a")
	must(t, err)
	if grown := after - before; grown < 4<<20 || grown > 5<<20 {
		t.Errorf("used grew by %d bytes when 4 MiB were written", grown)
	}
	if !p.Info().Can.Clone {
		return
	}
	must(t, p.Snapshot(ctx, "a", "b", false))
	must(t, p.Sync(ctx))
	if n, err := p.Used(ctx, "b"); err != nil || n > 1<<20 {
		t.Errorf("a clone that nobody wrote to uses %d bytes, %v", n, err)
	}
}

func testCreated(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	start := time.Now().Add(-time.Second) // file systems keep coarse times
	must(t, p.Create(ctx, "a"))
	time.Sleep(30 * time.Millisecond)
	must(t, p.Snapshot(ctx, "a", "b", true))
	a, err := p.Created(ctx, "a")
	must(t, err)
	b, err := p.Created(ctx, "b")
	must(t, err)
	if a.Before(start) || !b.After(a) || b.After(time.Now().Add(time.Second)) {
		t.Errorf("made %v, snapshot %v, test began %v", a, b, start)
	}
	if _, err := p.Created(ctx, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("age of nothing: %v, want fs.ErrNotExist", err)
	}
}

func testSpace(t *testing.T, p storage.Pool) {
	s, err := p.Space(context.Background())
	must(t, err)
	if s.Size <= 0 || s.Free <= 0 || s.Free > s.Size || s.Used < 0 || s.Used > s.Size {
		t.Errorf("space makes no sense: %+v", s)
	}
	must(t, p.Sync(context.Background()))
}

func testCancelled(t *testing.T, p storage.Pool) {
	must(t, p.Create(context.Background(), "a"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for op, err := range map[string]error{
		"create": p.Create(ctx, "b"), "snapshot": p.Snapshot(ctx, "a", "b", false), "delete": p.Delete(ctx, "a"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s after cancel: %v", op, err)
		}
	}
	wantGone(t, p, "b")
}
