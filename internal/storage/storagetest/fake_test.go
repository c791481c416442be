package storagetest_test

import (
	"context"
	"errors"
	"testing"

	"zone/internal/storage"
	"zone/internal/storage/storagetest"
)

func TestFake(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Pool { return storagetest.NewFake(t) })
}

func TestFakeFails(t *testing.T) {
	p, boom := storagetest.NewFake(t), errors.New("boom")
	p.Fail = func(op, dataset string) error {
		if op == "Snapshot" && dataset == "b" {
			return boom
		}
		return nil
	}
	ctx := context.Background()
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := p.Snapshot(ctx, "a", "b", false); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}
