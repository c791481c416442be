package zone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/storage"
)

func TestCreateTwiceAtOnce(t *testing.T) {
	w := newWorld(t)
	errs := make([]error, 6)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = w.Create(t.Context(), CreateSpec{Name: "a", Image: "base"}) })
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errdefs.Is(err, errdefs.WrongState) {
			t.Errorf("%v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d creations of one name succeeded", won)
	}
	w.whole(t)
}

func TestAddressesAndIdentitiesAreUnique(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	var group sync.WaitGroup
	for part := range 2 { // two commands at once
		var list []string
		for i := range 25 {
			list = append(list, fmt.Sprintf("c%d-%02d", part, i))
		}
		group.Go(func() {
			if err := w.Clone(t.Context(), "a", list); err != nil {
				t.Error(err)
			}
		})
	}
	group.Go(func() { w.create(t, "other") })
	group.Wait()
	seen := map[string]string{}
	list, err := w.List(t.Context())
	if err != nil || len(list) != 52 {
		t.Fatalf("%d zones, %v", len(list), err)
	}
	for _, z := range list {
		id := get(w.upper(t, z.Name, "etc/machine-id"))
		for _, v := range []string{z.Address, z.UUID, id} {
			if v == "" || seen[v] != "" {
				t.Errorf("%s and %s share %q", z.Name, seen[v], v)
			}
			seen[v] = z.Name
		}
		if host := get(w.upper(t, z.Name, "etc/hostname")); host != z.Name+"\n" {
			t.Errorf("%s calls itself %q", z.Name, host)
		}
	}
	w.whole(t)
}

func TestSelect(t *testing.T) {
	w := newWorld(t)
	w.create(t, "db1", "web1", "web2")
	for _, c := range []struct {
		patterns []string
		all      bool
		want     string
		kind     errdefs.Kind
	}{
		{[]string{"web2", "web1"}, false, "web2 web1", 0},
		{[]string{"web*"}, false, "web1 web2", 0},
		{[]string{"web2", "web*", "web2"}, false, "web2 web1", 0},
		{[]string{"*[1]"}, false, "db1 web1", 0},
		{nil, true, "db1 web1 web2", 0},
		{[]string{"db1"}, true, "db1 web1 web2", 0},
		{nil, false, "", 0},
		{[]string{"x*"}, false, "", errdefs.NotFound},
		{[]string{"web1", "wbe2"}, false, "", errdefs.NotFound},
		{[]string{"[a"}, false, "", errdefs.Usage},
		{[]string{""}, false, "", errdefs.NotFound},
		{[]string{"../zones/web1"}, false, "", errdefs.NotFound},
	} {
		got, err := w.Select(t.Context(), c.patterns, c.all)
		if strings.Join(got, " ") != c.want || c.kind != 0 && !errdefs.Is(err, c.kind) || c.kind == 0 && err != nil {
			t.Errorf("%q %v: %q, %v", c.patterns, c.all, got, err)
		}
	}
	_, err := w.Find(t.Context(), "wbe2")
	if err == nil || !strings.Contains(err.Error(), `nearest name is "web2"`) && !strings.Contains(err.Error(), `nearest name is "web1"`) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"..", ".", "", "web1/active", "../zones/web1"} {
		if _, err := w.Find(t.Context(), name); !errdefs.Is(err, errdefs.NotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSelectBadPatternWithoutZones(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Select(t.Context(), []string{"[a"}, false); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("%v", err)
	}
}

func TestMistakes(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	ctx := t.Context()
	swap := config.Size(-5)
	for _, c := range []struct {
		what string
		err  error
		kind errdefs.Kind
	}{
		{"bad name", w.Create(ctx, CreateSpec{Name: "../a", Image: "base"}), errdefs.Usage},
		{"bad configuration", w.Create(ctx, CreateSpec{Name: "b", Image: "base", Config: config.Zone{CappedMemory: config.CappedMemory{Swap: &swap}}}), errdefs.Usage},
		{"no such image", w.Create(ctx, CreateSpec{Name: "b", Image: "bas"}), errdefs.NotFound},
		{"no such pool", w.Create(ctx, CreateSpec{Name: "b", Pool: "x"}), errdefs.NotFound},
		{"taken", w.Create(ctx, CreateSpec{Name: "a"}), errdefs.WrongState},
		{"clone of nothing", w.Clone(ctx, "x", []string{"b"}), errdefs.NotFound},
		{"clone to itself", w.Clone(ctx, "a", []string{"a"}), errdefs.WrongState},
		{"clone to none", w.Clone(ctx, "a", nil), errdefs.Usage},
		{"clone twice", w.Clone(ctx, "a", []string{"b", "b"}), errdefs.Usage},
		{"clone to bad name", w.Clone(ctx, "a", []string{"b", "/"}), errdefs.Usage},
		{"snapshot of nothing", w.Snapshot(ctx, "x", "s"), errdefs.NotFound},
		{"bad snapshot name", w.Snapshot(ctx, "a", "../s"), errdefs.Usage},
		{"rollback to nothing", second(w.Rollback(ctx, "a", "s", "")), errdefs.NotFound},
		{"snapshot to delete", w.DeleteSnapshot(ctx, "a", "../active"), errdefs.NotFound},
		{"delete of nothing", w.Delete(ctx, "x", true), errdefs.NotFound},
		{"halt", w.Halt(ctx, "a"), errdefs.WrongState},
		{"exec", second(w.ExecArgv("a", execNothing)), errdefs.WrongState},
	} {
		if !errdefs.Is(c.err, c.kind) {
			t.Errorf("%s: %v, want kind %d", c.what, c.err, c.kind)
		}
	}
	if got := names(w.pool(t).Path("zones")); !slices.Equal(got, []string{"a"}) {
		t.Errorf("zones %v", got)
	}
	w.whole(t)
}

func second[T any](_ T, err error) error { return err }

// Whatever call fails, nothing is left of a creation.
func TestFailedCreateLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for n := 0; ; n++ {
		w := newWorld(t)
		w.create(t, "a")
		put(w.upper(t, "a", "data"), "x")
		calls, failed := 0, false
		w.hook = func(call string) error {
			calls++
			if calls-1 == n && !strings.HasPrefix(call, "Delete") {
				failed = true
				return boom
			}
			return nil
		}
		err := w.Clone(t.Context(), "a", []string{"b", "c"})
		w.hook = nil
		w.whole(t)
		if !failed {
			if n < 6 || err != nil {
				t.Errorf("%d places to fail at, %v", n, err)
			}
			return
		}
		if !errors.Is(err, boom) || w.exists(t, "b") || w.exists(t, "c") {
			t.Errorf("call %d: %v", n, err)
		}
	}
}

func TestClonesOfWholeAndUntouched(t *testing.T) {
	w := newWorld(t)
	w.createWhole(t, "w")
	put(w.at(t, "w").activePath("root/srv/data"), "x")
	must(w.Clone(t.Context(), "w", []string{"w2"}))
	at := w.at(t, "w2")
	if get(at.activePath("root/srv/data")) != "x" || get(at.activePath("root/etc/hostname")) != "w2\n" || w.record(t, "w2").Root != Whole {
		t.Error("the copy is none")
	}
	if _, err := os.Stat(at.activePath("image.json")); err == nil {
		t.Error("a zone carries its image's record")
	}
	w.create(t, "a")
	must(w.Clone(t.Context(), "a", []string{"b"}))
	if len(w.layers(t)) != 0 {
		t.Errorf("an untouched zone made layers %v", w.layers(t))
	}
	w.whole(t)
}

func TestOnlyIdentity(t *testing.T) {
	file := func(name, content string) func(string) {
		return func(dir string) { put(filepath.Join(dir, name), content) }
	}
	for _, c := range []struct {
		name string
		make func(upper string)
		want bool
	}{
		{"empty", func(string) {}, true},
		{"machine-id", file("etc/machine-id", "x"), true},
		{"hostname", file("etc/hostname", "x"), true},
		{"our hosts", file("etc/hosts", writtenHeader+"; remove\n127.0.0.1 x\n"), true},
		{"own hosts", file("etc/hosts", "10.0.0.1 db\n"), false},
		{"own resolv.conf", file("etc/resolv.conf", "nameserver 10.0.0.1\n"), false},
		{"other file of etc", file("etc/passwd", ""), false},
		{"file", file("data", ""), false},
		{"directory", func(d string) { must(os.MkdirAll(filepath.Join(d, "srv"), 0o755)) }, false},
		{"directory called hosts", func(d string) { must(os.MkdirAll(filepath.Join(d, "etc/hosts"), 0o755)) }, false},
		{"etc is a link", func(d string) { must(os.Symlink("/usr/etc", filepath.Join(d, "etc"))) }, false},
		{"hosts is a link", func(d string) {
			must(os.Mkdir(filepath.Join(d, "etc"), 0o755))
			must(os.Symlink("/srv/hosts", filepath.Join(d, "etc/hosts")))
		}, false},
		{"fifo", func(d string) {
			must(os.Mkdir(filepath.Join(d, "etc"), 0o755))
			must(unix.Mkfifo(filepath.Join(d, "etc/hosts"), 0o644))
		}, false},
		{"missing", func(d string) { must(os.Remove(d)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(dir)
			if got := onlyIdentity(dir); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestMaxLayers(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	r := w.record(t, "a")
	for i := range maxLayers {
		r.Layers = append(r.Layers, fmt.Sprintf("%012d", i))
	}
	must(writeRecord(w.at(t, "a").activePath(""), r))
	err := w.Clone(t.Context(), "a", []string{"b"})
	if !errdefs.Is(err, errdefs.WrongState) || !strings.Contains(errdefs.HintOf(err), "zone image build") {
		t.Errorf("%v", err)
	}
	r.Layers = r.Layers[1:]
	if err := checkLayers(w.at(t, "a"), r, "b"); err != nil && len(w.base) < 40 {
		t.Errorf("%d layers: %v", len(r.Layers), err)
	}
}

// Long names of pools and zones leave room for fewer layers.
func TestMountOptionsFitOnePage(t *testing.T) {
	pool := pathPool{dir: "/run/zone-0123abcd/pools/" + strings.Repeat("p", 62)}
	at := Place{pool, "a"}
	name := strings.Repeat("n", 63)
	r := Record{Root: Sparse, Image: strings.Repeat("i", 63) + "@10"}
	for checkLayers(at, r, name) == nil {
		r.Layers = append([]string{newID()}, r.Layers...)
		dir := Place{pool, name}.activePath("")
		if n := len(mountOptions(pool, dir, r)); n > 4095 {
			t.Fatalf("%d layers take %d bytes", len(r.Layers), n)
		}
	}
	if n := len(r.Layers); n < 20 || n > maxLayers {
		t.Errorf("%d layers", n)
	}
	if err := checkLayers(at, Record{Root: Whole}, name); err != nil {
		t.Error(err)
	}
}

// pathPool is a pool that only knows where it is.

type pathPool struct {
	storage.Pool
	dir string
}

func (p pathPool) Path(dataset string) string { return filepath.Join(p.dir, dataset) }

func TestLayersStayWhileNeeded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(t, "a")
	put(w.upper(t, "a", "data"), "1")
	must(w.Clone(ctx, "a", []string{"b"}))
	put(w.upper(t, "b", "data"), "2")
	must(w.Clone(ctx, "b", []string{"c"}))
	if n := len(w.record(t, "c").Layers); n != 2 || len(w.layers(t)) != 2 {
		t.Fatalf("c stands on %d layers of %v", n, w.layers(t))
	}
	must(w.Snapshot(ctx, "c", "s"))
	must(w.Delete(ctx, "a", false))
	must(w.Delete(ctx, "b", false))
	if len(w.layers(t)) != 2 {
		t.Errorf("layers %v", w.layers(t))
	}
	// c itself moves off its layers; its snapshot still needs them.
	r := w.record(t, "c")
	r.Layers = nil
	must(writeRecord(w.at(t, "c").activePath(""), r))
	must(w.dropUnusedLayers(ctx, w.pool(t)))
	if len(w.layers(t)) != 2 {
		t.Errorf("layers of a snapshot were dropped: %v", w.layers(t))
	}
	must(w.DeleteSnapshot(ctx, "c", "s"))
	if len(w.layers(t)) != 0 {
		t.Errorf("layers stay: %v", w.layers(t))
	}
	w.whole(t)
}

// The root that a rollback is exchanging is in no zone for a moment.
func TestLayersOfAnExchangedRootStay(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(t, "a")
	put(w.upper(t, "a", "data"), "1")
	must(w.Clone(ctx, "a", []string{"b"}))
	must(os.MkdirAll(w.pool(t).Path("tmp/e1"), 0o700))
	must(os.Rename(w.at(t, "b").activePath(""), w.pool(t).Path("tmp/e1/active")))
	must(os.Remove(w.at(t, "b").dir()))
	must(w.dropUnusedLayers(ctx, w.pool(t)))
	if len(w.layers(t)) != 1 {
		t.Error("the layer of a root in tmp was dropped")
	}
}

func TestImageUsers(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a", "b")
	w.createWhole(t, "w")
	must(w.Snapshot(t.Context(), "a", "s"))
	users, err := w.ImageUsers(w.pool(t), "base@1")
	if err != nil || !slices.Equal(users, []string{"a", "b"}) {
		t.Errorf("%v, %v", users, err)
	}
	put(w.at(t, "b").activePath(recordFile), "")
	if _, err := w.ImageUsers(w.pool(t), "base@1"); err == nil {
		t.Error("users are told although a record cannot be read")
	}
}

func TestImagesLock(t *testing.T) {
	w := newWorld(t)
	w.Patience = 20 * time.Millisecond
	release, err := w.LockImages(t.Context(), w.pool(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.LockImages(t.Context(), w.pool(t)); !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("%v", err)
	}
	if err := w.Create(t.Context(), CreateSpec{Name: "a", Image: "base"}); !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("%v", err)
	}
	w.Patience = 10 * time.Second
	done := make(chan error)
	go func() { done <- w.Create(t.Context(), CreateSpec{Name: "a", Image: "base"}) }()
	select {
	case err := <-done:
		t.Errorf("created while the images were locked: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestIdentitySparse(t *testing.T) {
	w := newWorld(t)
	w.addImage(t, "full", map[string]string{
		"etc/machine-id": "0123\n", "etc/hostname": "image\n", "etc/hosts": "127.0.0.1 localhost\n10.1.1.1 own\n",
		"etc/ssh/ssh_host_rsa_key": "k", "etc/ssh/ssh_host_rsa_key.pub": "k", "etc/ssh/sshd_config": "c",
		"var/lib/systemd/random-seed": "s", "var/lib/dhcp/dhclient.leases": "l", "var/lib/dbus/keep": "d",
	})
	image := w.pool(t).Path("images/full@1") + "/root"
	must(os.Symlink("/nowhere", filepath.Join(image, "var/lib/dbus/machine-id"))) // dangling, and there all the same
	must(os.Chmod(filepath.Join(image, "etc/ssh"), 0o711))
	must(w.Create(t.Context(), CreateSpec{Name: "a", Image: "full", Config: config.Zone{Hostname: "h.example"}}))
	for _, f := range []string{
		"etc/ssh/ssh_host_rsa_key", "etc/ssh/ssh_host_rsa_key.pub", "var/lib/systemd/random-seed",
		"var/lib/dhcp/dhclient.leases", "var/lib/dbus/machine-id",
	} {
		var st unix.Stat_t
		if err := unix.Lstat(w.upper(t, "a", f), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("%s is no whiteout: mode %o, %v", f, st.Mode, err)
		}
	}
	if got := get(w.upper(t, "a", "etc/hostname")); got != "h.example\n" {
		t.Errorf("hostname %q", got)
	}
	if got, want := get(w.upper(t, "a", "etc/machine-id")), strings.ReplaceAll(w.record(t, "a").UUID, "-", "")+"\n"; got != want || len(got) != 33 {
		t.Errorf("machine id %q, want %q", got, want)
	}
	if _, err := os.Stat(w.upper(t, "a", "etc/hosts")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the image's own hosts file was replaced")
	}
	for _, f := range []string{"etc/ssh/sshd_config", "var/lib/dbus/keep"} {
		if _, err := os.Lstat(w.upper(t, "a", f)); err == nil {
			t.Errorf("%s was touched", f)
		}
	}
	if st, err := os.Stat(w.upper(t, "a", "etc/ssh")); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("a directory made above another has its own mode: %v %v", st.Mode(), err)
	}
}

func TestIdentityWhole(t *testing.T) {
	w := newWorld(t)
	w.addImage(t, "full", map[string]string{
		"etc/machine-id": "0123\n", "etc/ssh/ssh_host_rsa_key": "k", "etc/ssh/sshd_config": "c", "var/lib/systemd/random-seed": "s",
	})
	must(w.Create(t.Context(), CreateSpec{Name: "a", Image: "full", Config: config.Zone{Root: Whole}}))
	root := w.at(t, "a").activePath("root")
	if got := names(filepath.Join(root, "etc/ssh")); !slices.Equal(got, []string{"sshd_config"}) {
		t.Errorf("etc/ssh holds %v", got)
	}
	if got := names(filepath.Join(root, "var/lib/systemd")); len(got) != 0 {
		t.Errorf("var/lib/systemd holds %v", got)
	}
	if got := get(filepath.Join(root, "etc/hosts")); !strings.HasPrefix(got, writtenHeader) || !strings.Contains(got, "127.0.1.1\ta\n") {
		t.Errorf("hosts %q", got)
	}
	if get(w.pool(t).Path("images/full@1/root/etc/machine-id")) != "0123\n" {
		t.Error("the image changed")
	}
}

// A clone stands on its source's files; what named the source goes.
func TestIdentityOfClone(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	put(w.upper(t, "a", "etc/ssh/ssh_host_ed25519_key"), "secret of a")
	must(w.Clone(t.Context(), "a", []string{"b"}))
	var st unix.Stat_t
	if err := unix.Lstat(w.upper(t, "b", "etc/ssh/ssh_host_ed25519_key"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Errorf("b has the host key of a: %v", err)
	}
	if hosts := get(w.upper(t, "b", "etc/hosts")); !strings.Contains(hosts, "127.0.1.1\tb\n") {
		t.Errorf("hosts of b: %q", hosts)
	}
	if get(w.upper(t, "a", "etc/ssh/ssh_host_ed25519_key")) != "secret of a" {
		t.Error("the source lost its key")
	}
}
