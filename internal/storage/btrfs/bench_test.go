package btrfs_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"zone/internal/storage"
)

var tree = flag.String("tree", "", "directory to copy into the dataset that is snapshot; default: 2000 small files")

// Fifty snapshots at once, each in a directory of its own, as clones are made.
func BenchmarkSnapshot(b *testing.B) {
	p := benchPool(b)
	ctx := context.Background()
	n := 0
	for b.Loop() {
		n++
		each(b, 50, func(i int) error { return p.Snapshot(ctx, "base", fmt.Sprintf("zones/%d-%d/active", n, i), false) })
	}
	b.ReportMetric(b.Elapsed().Seconds()*1000/50/float64(n), "ms/snapshot")
}

func BenchmarkCreate(b *testing.B) {
	p := benchPool(b)
	ctx := context.Background()
	n := 0
	for b.Loop() {
		n++
		each(b, 50, func(i int) error { return p.Create(ctx, fmt.Sprintf("zones/%d-%d/active", n, i)) })
	}
	b.ReportMetric(b.Elapsed().Seconds()*1000/50/float64(n), "ms/create")
}

func each(b *testing.B, n int, f func(i int) error) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

func benchPool(b *testing.B) storage.Pool {
	b.Helper()
	ctx := context.Background()
	p, err := newRegistry(b).Create(ctx, storage.Spec{Name: "tank", Size: 4096 * mib})
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Create(ctx, "base"); err != nil {
		b.Fatal(err)
	}
	root := filepath.Join(p.Path("base"), "root")
	if *tree != "" {
		err = os.CopyFS(root, os.DirFS(*tree))
	} else {
		err = os.Mkdir(root, 0o755)
	}
	for i := range 2000 {
		if err == nil && *tree == "" {
			err = os.WriteFile(filepath.Join(root, fmt.Sprint(i)), make([]byte, 5000), 0o600)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	return p
}
