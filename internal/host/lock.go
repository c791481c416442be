package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// Lock is a flock on a file, exclusive unless it says otherwise. The kernel drops it when its holder
// ends, however that happens; a lock that can be taken has no living owner.
type Lock struct {
	f *os.File
}

// TryLock takes the lock at path, making the file if needed, or returns
// ErrLocked at once.
func TryLock(path string) (*Lock, error) { return tryLock(path, unix.LOCK_EX) }

func tryLock(path string, how int) (*Lock, error) {
	for {
		f, err := openLock(path)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrLocked
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if sameFile(f, path) {
			return &Lock{f: f}, nil
		}
		_ = f.Close() // its holder removed the file between open and flock
	}
}

// WaitLock takes the lock, waiting up to the given time for its holder.
func WaitLock(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return waitLock(ctx, path, wait, unix.LOCK_EX)
}

// LockShared takes the lock at path together with others that share it; it
// keeps out, and waits up to the given time for, whoever holds it alone.
func LockShared(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return waitLock(ctx, path, wait, unix.LOCK_SH)
}

func waitLock(ctx context.Context, path string, wait time.Duration, how int) (*Lock, error) {
	deadline := time.Now().Add(wait)
	pause := time.Millisecond
	for {
		l, err := tryLock(path, how)
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Millisecond)
	}
}

// Unlock drops the lock, also where a program that is being started holds a
// copy of the descriptor for a moment.
func (l *Lock) Unlock() {
	_ = unix.Flock(int(l.f.Fd()), unix.LOCK_UN)
	_ = l.f.Close()
}

// Remove drops the lock and removes its file.
func (l *Lock) Remove() {
	_ = os.Remove(l.f.Name())
	l.Unlock()
}

// File is the locked file, for locks that carry content.
func (l *Lock) File() *os.File { return l.f }

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	return f, err
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
