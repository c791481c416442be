package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPending(t *testing.T) {
	zero, some := Size(0), Size(1<<30)
	booted := Zone{
		MaxLWPs: 50, CappedMemory: CappedMemory{Physical: 1 << 30, Swap: &zero}, Description: "old",
	}.WithDefaults("web1")
	defined := Zone{
		Hostname: "www", CPUShares: 200, CappedMemory: CappedMemory{Physical: 1 << 30, Swap: &some}, Description: "new",
	}
	got := Pending(booted, defined, "web1")
	want := []Change{
		{"hostname", "web1", "www"},
		{"cpu-shares", "", "200"},
		{"max-lwps", "50", ""},
		{"capped-memory.swap", "0", "1G"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	live, waiting := SplitLive(got)
	if len(live) != 3 || len(waiting) != 1 || waiting[0].Key != "hostname" {
		t.Errorf("live %v, waiting %v", live, waiting)
	}

	reverted := defined
	if err := Take(&reverted, booted, "web1", got); err != nil {
		t.Fatal(err)
	}
	// What is in force already stays, and no default is written down.
	if diff := cmp.Diff(Zone{
		MaxLWPs: 50, CappedMemory: CappedMemory{Physical: 1 << 30, Swap: &zero}, Description: "new",
	}, reverted); diff != "" {
		t.Errorf("reverted (-want +got):\n%s", diff)
	}
	if left := Pending(booted, reverted, "web1"); len(left) > 0 {
		t.Errorf("still pending: %v", left)
	}
}

func TestPendingSameIsNone(t *testing.T) {
	z := full(t)
	if got := Pending(z.WithDefaults("a"), z, "a"); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
