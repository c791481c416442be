package btrfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
	"zone/internal/storage"
	"zone/internal/storage/btrfs"
	"zone/internal/storage/dir"
	"zone/internal/storage/storagetest"
)

const mib = 1 << 20

// newRegistry returns a registry in the test's directory. Whatever is mounted
// below it is unmounted at the end.
func newRegistry(t testing.TB) *storage.Registry {
	t.Helper()
	hosttest.Require(t, hosttest.Root, hosttest.Btrfs, hosttest.Loop)
	home := t.TempDir()
	r := &storage.Registry{Home: filepath.Join(home, "home"), Run: filepath.Join(home, "run"), Runner: host.Exec{}}
	r.Backends = map[string]storage.Backend{"btrfs": btrfs.Backend{Runner: r.Runner}, "dir": dir.Backend{}}
	t.Cleanup(func() {
		names, _ := r.Names()
		for _, name := range names {
			if err := unix.Unmount(filepath.Join(r.Run, "pools", name), unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
				t.Error(err)
			}
		}
		waitNoLoop(t, home)
	})
	return r
}

// waitNoLoop fails the test when a loop device on a file below dir stays.
func waitNoLoop(t testing.TB, dir string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := loops(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("loop devices left: %v", left)
			return
		}
	}
}

func loops(dir string) []string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var found []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.HasPrefix(b, []byte(dir+"/")) {
			found = append(found, f)
		}
	}
	return found
}

func newPool(t *testing.T, size int64) storage.Pool {
	t.Helper()
	p, err := newRegistry(t).Create(context.Background(), storage.Spec{Name: "tank", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSuite(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Pool { return newPool(t, 512*mib) })
}

// The directory driver passes the suite also where files can be cloned.
func TestDirectoryOnBtrfs(t *testing.T) {
	r := newRegistry(t)
	under, err := r.Create(context.Background(), storage.Spec{Name: "under", Size: 1024 * mib})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	storagetest.Run(t, func(t *testing.T) storage.Pool {
		n++
		spec := storage.Spec{Name: fmt.Sprint("d", n), Backend: "dir", Path: filepath.Join(under.Info().Path, fmt.Sprint(n))}
		p, err := r.Create(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Info().Can.Reflink {
			t.Error("cloning of files was not found on btrfs")
		}
		return p
	})
}

func TestInfo(t *testing.T) {
	info := newPool(t, 256*mib).Info()
	if !info.Can.Clone || !info.Can.Immutable || !info.Can.Checksums || !info.DirectIO || info.State != storage.Ready {
		t.Errorf("%+v", info)
	}
}

func TestDeleteInnerSubvolumes(t *testing.T) {
	p := newPool(t, 256*mib)
	ctx := context.Background()
	for _, d := range []string{"a", "b", "c"} {
		if err := p.Create(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody moves subvolumes deep into a dataset: a/x/y/b, and c in b.
	deep := filepath.Join(p.Path("a"), "x", "y")
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.Rename(p.Path("c"), filepath.Join(p.Path("b"), "c")),
		os.Rename(p.Path("b"), filepath.Join(deep, "b"))); err != nil {
		t.Fatal(err)
	}
	if err := p.SetReadOnly(ctx, "a", true); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.Path("a")); err == nil {
		t.Error("still there")
	}
}

func TestFullPoolSaysSoAndRecovers(t *testing.T) {
	p := newPool(t, 256*mib)
	ctx := context.Background()
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	fill(t, p)
	if err := os.WriteFile(filepath.Join(p.Path("a"), "more"), make([]byte, mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write to a full pool: %v, want ENOSPC", err)
	}
	// With no data block left snapshots may still fit into the metadata; they
	// fail as "full" once that is used up too.
	var err error
	for i := 0; err == nil && i < 3000; i++ {
		err = p.Snapshot(ctx, "a", fmt.Sprintf("s/%d", i), false)
		for j := 0; err == nil && j < 50; j++ {
			name := filepath.Join(p.Path(fmt.Sprintf("s/%d", i)), fmt.Sprint("f", j))
			err = os.WriteFile(name, make([]byte, 1500), 0o600) // kept in the metadata
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the metadata ended with %v, want ENOSPC", err)
	}
	if err := p.Delete(ctx, "a"); err != nil {
		t.Errorf("delete in a full pool: %v", err)
	}
	for i := range 10 {
		if err := p.Delete(ctx, fmt.Sprintf("s/%d", i)); err != nil {
			t.Errorf("delete in a full pool: %v", err)
		}
	}
	waitWritable(t, p)
}

func fill(t *testing.T, p storage.Pool) {
	t.Helper()
	f, err := os.Create(filepath.Join(p.Path("a"), "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte("x"), mib)
	for range 400 {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling ended with %v, want ENOSPC", err)
	}
}

// waitWritable waits until deleted datasets gave their space back.
func waitWritable(t *testing.T, p storage.Pool) {
	t.Helper()
	ctx := context.Background()
	var err error
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		_ = p.Sync(ctx)
		if err = p.Create(ctx, "after"); err == nil || errors.Is(err, os.ErrExist) {
			if err = os.WriteFile(filepath.Join(p.Path("after"), "f"), make([]byte, 8*mib), 0o600); err == nil {
				return
			}
		}
	}
	t.Errorf("the pool stays unusable after deleting: %v", err)
}

func TestSizes(t *testing.T) {
	r := newRegistry(t)
	for _, size := range []int64{1, 255 * mib, 1 << 60} {
		_, err := r.Create(context.Background(), storage.Spec{Name: "tank", Size: size})
		if !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("size %d: %v, want a usage error", size, err)
		}
	}
	for _, c := range []string{"lz4", "none"} {
		_, err := r.Create(context.Background(), storage.Spec{Name: "tank", Compression: c})
		if !errdefs.Is(err, errdefs.Usage) || !strings.Contains(err.Error(), "zstd") {
			t.Errorf("compression %s: %v", c, err)
		}
	}
	if names, _ := r.Names(); len(names) != 0 {
		t.Errorf("refused pools left %v", names)
	}
}

func TestCompressionAndSparseFile(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Size: 512 * mib, Compression: "zstd"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("all work and no play\n"), 2<<20)
	if err := os.WriteFile(filepath.Join(p.Path("a"), "f"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := p.Space(ctx)
	if err != nil || s.Used > int64(len(text))/4 {
		t.Errorf("%d bytes of text use %d in the pool, %v", len(text), s.Used, err)
	}
	st, err := os.Stat(p.Info().File)
	if err != nil || st.Size() != 512*mib || st.Mode().Perm() != 0o600 {
		t.Errorf("pool file: %v, %v", st, err)
	}
}

func TestReopen(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Size: 256 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	waitNoLoop(t, r.Home)
	var wg sync.WaitGroup
	for range 8 { // at once: one mounts, all find it
		wg.Go(func() {
			if _, err := r.Open(ctx, "tank"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(loops(r.Home)); n != 1 {
		t.Errorf("%d loop devices, want 1", n)
	}
	if _, err := os.Stat(p.Path("a")); err != nil {
		t.Error(err)
	}
	start := time.Now()
	for range 100 {
		if _, err := r.Open(ctx, "tank"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("open of an open pool: %v", time.Since(start)/100)
}

func TestDestroyBusy(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Size: 256 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(p.Path("a"))
	if err != nil {
		t.Fatal(err)
	}
	err = r.Destroy(ctx, "tank")
	if !errdefs.Is(err, errdefs.Busy) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("destroy with an open file: %v, want busy by this process", err)
	}
	_ = f.Close()
	if _, err := r.Open(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	wantClean(t, r)
}

// A copy of the mount namespace keeps the file system alive after an unmount
// here: destroying its file then would lose data under a running zone.
func TestDestroyMountedElsewhere(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	p, err := r.Create(ctx, storage.Spec{Name: "tank", Size: 256 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	inside, leave, left := make(chan bool), make(chan bool), make(chan error)
	go func() {
		left <- host.WithThrowawayMounts(func() error {
			// Cut off from the first namespace, as the pools' own is.
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			inside <- true
			<-leave
			return nil
		})
	}()
	<-inside
	err = r.Destroy(ctx, "tank")
	if !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("destroy: %v, want busy", err)
	}
	t.Log(err)
	if _, err := os.Stat(p.Path("a")); err != nil {
		t.Errorf("the refused destroy did not mount the pool again: %v", err)
	}
	leave <- true
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	if err := r.Destroy(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	wantClean(t, r)
}

func wantClean(t *testing.T, r *storage.Registry) {
	t.Helper()
	for _, d := range []string{filepath.Join(r.Home, "pools"), filepath.Join(r.Run, "pools")} {
		if entries, err := os.ReadDir(d); len(entries) > 0 {
			t.Errorf("%s holds %v, %v", d, entries, err)
		}
	}
	waitNoLoop(t, r.Home)
}

func TestMissingProgram(t *testing.T) {
	r := newRegistry(t)
	t.Setenv("PATH", t.TempDir())
	_, err := r.Create(context.Background(), storage.Spec{Name: "tank", Size: 256 * mib})
	if !errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(errdefs.HintOf(err), "btrfs-progs") {
		t.Errorf("%v, hint %q", err, errdefs.HintOf(err))
	}
	wantClean(t, r)
}

// brokenRunner cancels its context in the middle of the work.
type brokenRunner struct{ cancel func() }

func (b brokenRunner) Run(ctx context.Context, _ host.Cmd) (host.Result, error) {
	b.cancel()
	return host.Result{}, ctx.Err()
}

func TestInterruptedCreateLeavesNothing(t *testing.T) {
	r := newRegistry(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.Backends["btrfs"] = btrfs.Backend{Runner: brokenRunner{cancel}}
	if _, err := r.Create(ctx, storage.Spec{Name: "tank", Size: 256 * mib}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	names, err := os.ReadDir(filepath.Join(r.Home, "pools"))
	if err != nil || len(names) > 0 {
		t.Errorf("left %v, %v", names, err)
	}
}
