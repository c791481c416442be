package btrfs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host/hosttest"
	"zone/internal/storage"
)

// newDevice returns a loop device that is detached at the end of the test.
func newDevice(t *testing.T, size int64) string {
	t.Helper()
	hosttest.Require(t, hosttest.Root, hosttest.Loop)
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(f.Fd())})
		if err == nil {
			t.Cleanup(func() {
				if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
					t.Error(err)
				}
				_ = dev.Close()
			})
			return dev.Name()
		}
		_ = dev.Close()
	}
	t.Fatal("no free loop device")
	return ""
}

func TestMirror(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	a, b := newDevice(t, 512*mib), newDevice(t, 512*mib)
	spec := storage.Spec{Name: "tank", Devices: []string{a, b}, Mirror: true}
	p, err := r.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	s, err := p.Space(ctx)
	if err != nil || s.Size > 600*mib {
		t.Errorf("a mirror of 2 x 512 MiB has a size of %d MiB, %v", s.Size/mib, err)
	}
	if err := r.Close(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	if _, err = r.Open(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.Path("a")); err != nil {
		t.Error(err)
	}
	if err := r.Destroy(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(ctx, spec); err != nil {
		t.Errorf("the devices of a destroyed pool are not free: %v", err)
	}
	spec.Name = "other"
	if _, err = r.Create(ctx, spec); err == nil {
		t.Error("devices in use were taken")
	}
	if _, err = r.Open(ctx, "tank"); err != nil {
		t.Errorf("a refused create hurt the pool: %v", err)
	}
	if err := r.Destroy(ctx, "tank"); err != nil {
		t.Fatal(err)
	}
}

func TestForeignFileSystemIsKept(t *testing.T) {
	r := newRegistry(t)
	ctx := context.Background()
	a := newDevice(t, 512*mib)
	if _, err := r.Create(ctx, storage.Spec{Name: "one", Devices: []string{a}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	_, err := r.Create(ctx, storage.Spec{Name: "two", Devices: []string{a}})
	if !errdefs.Is(err, errdefs.WrongState) || !strings.Contains(errdefs.HintOf(err), "--force") {
		t.Errorf("create over another pool: %v", err)
	}
	if _, err := r.Open(ctx, "one"); err != nil {
		t.Errorf("the pool there before is lost: %v", err)
	}
	if err := r.Destroy(ctx, "one"); err != nil {
		t.Error(err)
	}
}

func TestDeviceMistakes(t *testing.T) {
	r := newRegistry(t)
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []storage.Spec{
		{Devices: []string{file}},
		{Devices: []string{"/dev/null"}},
		{Devices: []string{"/dev/none"}},
		{Mirror: true},
		{Mirror: true, Devices: []string{"/dev/loop0"}},
		{Devices: []string{"/dev/loop0"}, Size: 1 << 30},
		{Devices: []string{"/dev/loop0", "/dev/loop0"}},
		{Path: "/x"},
	} {
		spec.Name = "tank"
		if _, err := r.Create(context.Background(), spec); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("%+v: %v, want a usage error", spec, err)
		}
	}
}
