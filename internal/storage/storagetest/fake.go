// Package storagetest holds the suite that every storage driver passes, and a
// pool for the tests of other packages.
package storagetest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"zone/internal/storage"
	"zone/internal/storage/dir"
)

// Fake is a pool in the test's own directory. It works without root and
// refuses what real pools refuse.
type Fake struct {
	storage.Pool
	// Fail, when set, is asked before each change; what it returns is what the
	// change returns. op is the name of the method. Set it before the pool is
	// used by several goroutines.
	Fail func(op, dataset string) error
}

// NewFake makes a fake pool by the name tank.
func NewFake(t testing.TB) *Fake {
	t.Helper()
	rec := storage.Record{
		Schema: 1, Name: "tank", UUID: "7f3c6a52-0d0e-4c39-9d3b-2f3a1a6f0001", Backend: "dir", Compression: "off",
		Path: filepath.Join(t.TempDir(), "tank.d"), MadePath: true, Created: time.Unix(1700000000, 0).UTC(),
	}
	pool, err := dir.Backend{}.Make(context.Background(), rec, "")
	if err != nil {
		t.Fatal(err)
	}
	return &Fake{Pool: pool}
}

func (f *Fake) fail(op, dataset string) error {
	if f.Fail == nil {
		return nil
	}
	return f.Fail(op, dataset)
}

// Create is Pool.Create, after Fail.
func (f *Fake) Create(ctx context.Context, dataset string) error {
	if err := f.fail("Create", dataset); err != nil {
		return err
	}
	return f.Pool.Create(ctx, dataset)
}

// Snapshot is Pool.Snapshot, after Fail with the new dataset's name.
func (f *Fake) Snapshot(ctx context.Context, from, to string, readOnly bool) error {
	if err := f.fail("Snapshot", to); err != nil {
		return err
	}
	return f.Pool.Snapshot(ctx, from, to, readOnly)
}

// SetReadOnly is Pool.SetReadOnly, after Fail.
func (f *Fake) SetReadOnly(ctx context.Context, dataset string, readOnly bool) error {
	if err := f.fail("SetReadOnly", dataset); err != nil {
		return err
	}
	return f.Pool.SetReadOnly(ctx, dataset, readOnly)
}

// Rename is Pool.Rename, after Fail with the new name.
func (f *Fake) Rename(ctx context.Context, from, to string) error {
	if err := f.fail("Rename", to); err != nil {
		return err
	}
	return f.Pool.Rename(ctx, from, to)
}

// Delete is Pool.Delete, after Fail.
func (f *Fake) Delete(ctx context.Context, dataset string) error {
	if err := f.fail("Delete", dataset); err != nil {
		return err
	}
	return f.Pool.Delete(ctx, dataset)
}
