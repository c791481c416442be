package zone

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/host"
	"zone/internal/image"
	"zone/internal/network"
	"zone/internal/storage"
	"zone/internal/storage/dir"
)

// world is a home with one pool in a directory, one image, and fakes of what
// lies outside. All of it is in files below base, so that another process can
// go on where one was killed.
type world struct {
	*Service
	base  string
	notes []string
	// hook is asked before and after each change of pool, engine and network:
	// "Snapshot layers/x", "Snapshot layers/x done". What it returns is what
	// the change returns.
	hook func(call string) error
	mu   sync.Mutex // guards notes, and orders calls of hook
}

func openWorld(base string) *world {
	w := &world{base: base}
	root := filepath.Join(base, "host")
	must(os.MkdirAll(filepath.Join(root, "sys/fs/cgroup"), 0o755))
	must(os.MkdirAll(filepath.Join(root, "proc/self"), 0o755))
	must(os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), 0o644))
	must(os.WriteFile(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers"), []byte("cpu memory pids\n"), 0o644))
	tree, err := cgroup.Detect(root)
	must(err)
	home, run := filepath.Join(base, "home"), filepath.Join(base, "run")
	w.Service = &Service{
		Home: home, Run: run, Cgroups: tree, Patience: 5 * time.Second,
		Pools:   &storage.Registry{Home: home, Run: run, Backends: map[string]storage.Backend{"dir": backend{Backend: dir.New(), w: w}}},
		Engine:  &fakeEngine{w: w, dir: filepath.Join(base, "engine")},
		Network: &fakeNet{w: w, dir: filepath.Join(base, "net")},
		Note:    w.note,
		Init:    "/bin/true",
	}
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

func (w *world) call(name string, f func() error) error {
	err := w.ask(name)
	if err == nil {
		err = f()
	}
	if err == nil {
		err = w.ask(name + " done")
	}
	return err
}

func (w *world) ask(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hook == nil {
		return nil
	}
	return w.hook(name)
}

// newWorld makes a world with the pool tank and the image base@1.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := openWorld(t.TempDir())
	if _, err := w.Pools.Create(t.Context(), storage.Spec{Name: DefaultPool, Backend: "dir"}); err != nil {
		t.Fatal(err)
	}
	w.addImage(t, "base", map[string]string{
		"etc/hostname": "image\n", "etc/machine-id": "", "etc/hosts": "", "etc/os-release": "ID=test\n",
	})
	return w
}

func (w *world) pool(t *testing.T) storage.Pool {
	t.Helper()
	p, err := w.Pools.Open(t.Context(), DefaultPool)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) addImage(t *testing.T, name string, files map[string]string) {
	t.Helper()
	p := w.pool(t)
	img := image.Image{Schema: image.Schema, Name: name, Version: 1}
	dataset := "images/" + img.Ref()
	must(p.Create(t.Context(), dataset))
	must(host.WriteJSON(filepath.Join(p.Path(dataset), "image.json"), img, false))
	must(os.Mkdir(filepath.Join(p.Path(dataset), "root"), 0o755))
	for f, content := range files {
		put(filepath.Join(p.Path(dataset), "root", f), content)
	}
}

func put(file, content string) {
	must(os.MkdirAll(filepath.Dir(file), 0o755))
	must(os.WriteFile(file, []byte(content), 0o644))
}

func get(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (w *world) create(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := w.Create(t.Context(), CreateSpec{Name: n, Image: "base"}); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) createWhole(t *testing.T, name string) {
	t.Helper()
	if err := w.Create(t.Context(), CreateSpec{Name: name, Image: "base", Config: config.Zone{Root: Whole}}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) at(t *testing.T, name string) Place { return Place{w.pool(t), name} }

// upper is a path in a sparse zone's own files.
func (w *world) upper(t *testing.T, name, file string) string {
	return filepath.Join(w.at(t, name).activePath("upper"), file)
}

func (w *world) record(t *testing.T, name string) Record {
	t.Helper()
	r, err := readRecord(w.at(t, name).activePath(""))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) layers(t *testing.T) []string {
	return names(filepath.Join(w.pool(t).Path("layers")))
}

// whole checks what holds whenever nothing is under way: no unfinished work,
// no journal, each zone and snapshot whole, and the layers just those needed.
func (w *world) whole(t *testing.T) {
	t.Helper()
	p := w.pool(t)
	for _, dir := range []string{p.Path("tmp"), p.Path("trash"), filepath.Join(w.Home, "journal")} {
		if left := names(dir); len(left) > 0 {
			t.Errorf("left in %s: %v", dir, left)
		}
	}
	need := []string{}
	for _, z := range names(p.Path("zones")) {
		at := Place{p, z}
		if len(names(at.dir())) == 0 {
			t.Errorf("zone %s is empty", z)
		}
		for _, d := range names(at.dir()) {
			dir := filepath.Join(at.dir(), d)
			r, err := readRecord(dir)
			if err != nil || r.Name != z {
				t.Errorf("%s/%s: record %+v, %v", z, d, r, err)
			}
			if _, err := readConfig(dir); err != nil {
				t.Errorf("%s/%s: %v", z, d, err)
			}
			need = append(need, r.Layers...)
		}
	}
	slices.Sort(need)
	if have := w.layers(t); !slices.Equal(slices.Compact(need), append([]string{}, have...)) {
		t.Errorf("layers %v, needed %v", have, need)
	}
}

// backend wraps pools so that they ask the world's hook.
type backend struct {
	storage.Backend
	w *world
}

func (b backend) wrap(p storage.Pool, err error) (storage.Pool, error) {
	if err != nil {
		return nil, err
	}
	return hooked{p, b.w}, nil
}

func (b backend) Make(ctx context.Context, rec storage.Record, at string) (storage.Pool, error) {
	return b.wrap(b.Backend.Make(ctx, rec, at))
}

func (b backend) Open(ctx context.Context, rec storage.Record, at string) (storage.Pool, error) {
	return b.wrap(b.Backend.Open(ctx, rec, at))
}

func (b backend) Opened(rec storage.Record, at string) (storage.Pool, bool) {
	p, ok := b.Backend.Opened(rec, at)
	if !ok {
		return nil, false
	}
	return hooked{p, b.w}, true
}

type hooked struct {
	storage.Pool
	w *world
}

func (h hooked) Create(ctx context.Context, d string) error {
	return h.w.call("Create "+d, func() error { return h.Pool.Create(ctx, d) })
}

func (h hooked) Snapshot(ctx context.Context, from, to string, ro bool) error {
	return h.w.call("Snapshot "+to, func() error { return h.Pool.Snapshot(ctx, from, to, ro) })
}

func (h hooked) SetReadOnly(ctx context.Context, d string, ro bool) error {
	return h.w.call("SetReadOnly "+d, func() error { return h.Pool.SetReadOnly(ctx, d, ro) })
}

func (h hooked) Rename(ctx context.Context, from, to string) error {
	return h.w.call("Rename "+to, func() error { return h.Pool.Rename(ctx, from, to) })
}

func (h hooked) Delete(ctx context.Context, d string) error {
	return h.w.call("Delete "+d, func() error { return h.Pool.Delete(ctx, d) })
}

// fakeNet gives addresses out of 10.9.0.0/16 and keeps a file for each link.
type fakeNet struct {
	w   *world
	dir string
}

func (n *fakeNet) Allocate(used []netip.Addr) (netip.Addr, error) {
	a := netip.MustParseAddr("10.9.0.2")
	for slices.Contains(used, a) {
		a = a.Next()
	}
	return a, nil
}

func (n *fakeNet) Usable(a netip.Addr) bool { return netip.MustParsePrefix("10.9.0.0/16").Contains(a) }

func (n *fakeNet) Attach(_ context.Context, e network.Endpoint, ns string) error {
	return n.w.call("Attach", func() error {
		if _, err := os.Stat(ns); err != nil {
			return fmt.Errorf("attach %s: %w", e.HostLink, err)
		}
		file := filepath.Join(n.dir, e.HostLink)
		if _, err := os.Stat(file); err == nil {
			return fmt.Errorf("attach %s: exists", e.HostLink)
		}
		put(file, e.Addr.String())
		return nil
	})
}

func (n *fakeNet) Detach(_ context.Context, link string) error {
	return n.w.call("Detach", func() error { return removeIfThere(filepath.Join(n.dir, link)) })
}

func (n *fakeNet) ReleaseUnused(context.Context) error { return nil }

func alivePID(pid int) bool {
	_, state, err := startTick(pid)
	return err == nil && state != 'Z' && state != 'X'
}

// journalOf writes the entry of a process that is gone.
func (w *world) journalOf(t *testing.T, e Entry, cutOff string) {
	t.Helper()
	if e.ID == "" {
		e.ID = newID()
	}
	e.Pool, e.PID, e.Started = DefaultPool, 1<<22, time.Unix(1700000000, 0)
	line, err := json.Marshal(e)
	must(err)
	put(filepath.Join(w.journalDir(), e.ID), string(line)+"\n"+cutOff)
}
