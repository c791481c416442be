package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep/er/lock")
	l, err := TryLock(path)
	must(t, err)
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
	l.Unlock()
	l, err = TryLock(path)
	must(t, err)
	l.Remove()
	if _, err := os.Stat(path); err == nil {
		t.Error("removed, and there")
	}
	if _, err := TryLock(t.TempDir()); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("locked a directory: %v", err)
	}
}

func TestWaitLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	must(t, err)
	start := time.Now()
	if _, err := WaitLock(t.Context(), path, 30*time.Millisecond); !errors.Is(err, ErrLocked) || time.Since(start) < 30*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := WaitLock(ctx, path, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	time.AfterFunc(20*time.Millisecond, l.Unlock)
	l, err = WaitLock(t.Context(), path, time.Minute)
	must(t, err)
	l.Unlock()
}

func TestLockShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, err := LockShared(t.Context(), path, 5*time.Second)
	must(t, err)
	b, err := LockShared(t.Context(), path, 5*time.Second)
	must(t, err)
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
	a.Unlock()
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("one sharer is left: %v", err)
	}
	b.Unlock()
	alone, err := TryLock(path)
	must(t, err)
	if _, err := LockShared(t.Context(), path, 20*time.Millisecond); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockShared(ctx, path, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	var released atomic.Bool
	time.AfterFunc(20*time.Millisecond, func() { released.Store(true); alone.Unlock() })
	c, err := LockShared(t.Context(), path, 5*time.Second)
	must(t, err)
	if !released.Load() {
		t.Error("shared what somebody held alone")
	}
	c.Unlock()
}

// Holders that remove the file must not let two in at once.
func TestLockRemovalRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, most, turns atomic.Int32
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for range 20 {
				l, err := WaitLock(t.Context(), path, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				n := inside.Add(1)
				most.Store(max(most.Load(), n))
				turns.Add(1)
				inside.Add(-1)
				if i%2 == 0 {
					l.Remove()
				} else {
					l.Unlock()
				}
			}
		})
	}
	group.Wait()
	if most.Load() != 1 || turns.Load() != 16*20 {
		t.Errorf("%d at once, %d turns", most.Load(), turns.Load())
	}
}

func TestLockEndsWithItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := startHelper(t, "waiting", "lock="+path, "wait")
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("%v", err)
	}
	must(t, cmd.Process.Kill())
	l, err := WaitLock(t.Context(), path, 5*time.Second)
	must(t, err)
	l.Unlock()
}

// A program started under a lock must not keep it.
func TestLockIsNotInherited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryLock(path)
	must(t, err)
	startHelper(t, "waiting", "wait")
	l.Unlock()
	if l, err = TryLock(path); err != nil {
		t.Fatal(err)
	}
	l.Unlock()
}
