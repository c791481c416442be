package host

import (
	"bytes"
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
)

// hostile makes a root beside a directory that nothing may reach, and returns
// both.
func hostile(t *testing.T) (r *Root, inside, outside string) {
	t.Helper()
	base := t.TempDir()
	inside, outside = filepath.Join(base, "root"), filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(inside, "etc"), 0o755))
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644))
	r, err := OpenRoot(inside)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r, inside, outside
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// untouched checks that the directory outside holds what it was made with.
func untouched(t *testing.T, outside string) {
	t.Helper()
	entries, err := os.ReadDir(outside)
	must(t, err)
	data, _ := os.ReadFile(filepath.Join(outside, "secret"))
	if len(entries) != 1 || string(data) != "secret" {
		t.Errorf("outside: %v, %q", entries, data)
	}
}

// links are ways out of a root for whoever follows them by plain paths.
func links(outside string) map[string]string {
	return map[string]string{
		"absolute": outside, "relative": "../outside", "up": strings.Repeat("../", 40) + outside,
		"magic": "/proc/self/root" + outside, "cwd": "/proc/self/cwd", "dots": "etc/../../outside",
	}
}

func TestRootKeepsInside(t *testing.T) {
	for name := range links("") {
		t.Run(name, func(t *testing.T) {
			r, inside, outside := hostile(t)
			must(t, os.Symlink(links(outside)[name], filepath.Join(inside, "l")))
			for _, file := range []string{"l/secret", "/l/secret", "etc/../l/secret", "../outside/secret", outside + "/secret"} {
				if data, err := r.ReadFile(file); err == nil {
					t.Errorf("read %s: %q", file, data)
				}
				if r.Exists(file) {
					t.Errorf("%s exists", file)
				}
				_ = r.Remove(file)
				_ = r.WriteFile(file, []byte("evil"), 0o644)
				_ = r.Whiteout(file)
			}
			_ = r.MkdirAll("l/a/b", 0o755)
			_ = r.Remove("l/secret")
			if entries, err := r.ReadDir("l"); err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "root" }) {
				t.Errorf("listed %v", entries)
			}
			untouched(t, outside)
		})
	}
}

// An absolute link means the root's own file, as it does to those inside.
func TestRootFollowsLinksInside(t *testing.T) {
	r, inside, _ := hostile(t)
	must(t, os.WriteFile(filepath.Join(inside, "etc/real"), []byte("x"), 0o644))
	must(t, os.Symlink("/etc/real", filepath.Join(inside, "abs")))
	must(t, os.Symlink("../../../etc", filepath.Join(inside, "etc/dir")))
	for _, name := range []string{"abs", "/abs", "etc/dir/real", "/../../etc/real"} {
		if data, err := r.ReadFile(name); err != nil || string(data) != "x" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

func TestRootMagicLink(t *testing.T) {
	r, err := OpenRoot("/proc")
	must(t, err)
	defer r.Close()
	if r.Exists(fmt.Sprintf("/%d/root/etc", os.Getpid())) || r.Exists(fmt.Sprintf("/%d/cwd", os.Getpid())) {
		t.Error("followed a magic link")
	}
}

func TestRootWriteReplacesLinks(t *testing.T) {
	r, inside, outside := hostile(t)
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(inside, "etc/file")))
	must(t, r.WriteFile("/etc/file", []byte("new"), 0o640))
	st, err := os.Lstat(filepath.Join(inside, "etc/file"))
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	untouched(t, outside)
	if entries, _ := r.ReadDir("etc"); len(entries) != 1 {
		t.Errorf("left beside it: %v", entries)
	}
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(inside, "etc/gone")))
	must(t, r.Remove("etc/gone"))
	must(t, os.Symlink(outside, filepath.Join(inside, "etc/gone")))
	must(t, r.Remove("etc/gone"))
	untouched(t, outside)
}

// While the parent is swapped for a link again and again, nothing gets out.
func TestRootSwappedParent(t *testing.T) {
	r, inside, outside := hostile(t)
	must(t, os.Mkdir(filepath.Join(inside, "d"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(inside, "l")))
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = Exchange(filepath.Join(inside, "d"), filepath.Join(inside, "l"))
			}
		}
	})
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		_ = r.WriteFile("d/secret", []byte("evil"), 0o644)
		_ = r.WriteFile("d/new", []byte("evil"), 0o644)
		_ = r.MkdirAll("d/a/b", 0o755)
		_ = r.Whiteout("d/w")
		_ = r.Remove("d/secret")
		if data, err := r.ReadFile("d/secret"); err == nil && string(data) == "secret" {
			t.Error("read outside")
		}
	}
	close(stop)
	swapper.Wait()
	untouched(t, outside)
}

// within fails the test when f takes longer than a moment.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(3 * time.Second):
		t.Fatalf("%s blocks", what)
	}
}

func TestRootReadFileOfSpecial(t *testing.T) {
	r, inside, _ := hostile(t)
	must(t, unix.Mkfifo(filepath.Join(inside, "fifo"), 0o644))
	must(t, os.Symlink("/fifo", filepath.Join(inside, "link")))
	for _, name := range []string{"fifo", "link", "etc", "/"} {
		within(t, "reading "+name, func() {
			if data, err := r.ReadFile(name); err == nil {
				t.Errorf("%s: %q", name, data)
			}
		})
	}
	// A reader of the pipe would let its writer go on.
	if _, err := os.OpenFile(filepath.Join(inside, "fifo"), os.O_WRONLY|unix.O_NONBLOCK, 0); !errors.Is(err, unix.ENXIO) {
		t.Errorf("the pipe has a reader: %v", err)
	}
	if os.Geteuid() == 0 && unix.Mknod(filepath.Join(inside, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) == nil {
		within(t, "reading a device", func() {
			if data, err := r.ReadFile("zero"); err == nil {
				t.Errorf("read %d bytes of a device", len(data))
			}
		})
	}
}

func TestRootReadFileIsBounded(t *testing.T) {
	r, inside, _ := hostile(t)
	file := filepath.Join(inside, "big")
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, os.Truncate(file, 1<<40))
	data, err := r.ReadFile("big")
	if err != nil || len(data) != 16<<20 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// Whoever leases a file makes each open fail with "try again"; that must end.
func TestRootReadFileOfLeased(t *testing.T) {
	r, inside, _ := hostile(t)
	file := filepath.Join(inside, "leased")
	must(t, os.WriteFile(file, []byte("x"), 0o644))
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		skip(t, fmt.Sprintf("needs leases: %v", err))
	}
	within(t, "reading a leased file", func() {
		if data, err := r.ReadFile("leased"); err == nil {
			t.Errorf("read %q through a lease", data)
		}
	})
	within(t, "opening a leased file", func() {
		if f, err := r.Open("leased", unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			_ = f.Close()
		}
	})
}

// What lies in wait under the name of a temporary file must not matter.
func TestRootWriteFileBesideTraps(t *testing.T) {
	r, inside, _ := hostile(t)
	must(t, unix.Mkfifo(filepath.Join(inside, fmt.Sprintf("etc/.hosts.zone-%d", os.Getpid())), 0o644))
	within(t, "writing beside a pipe", func() { must(t, r.WriteFile("etc/hosts", []byte("x"), 0o644)) })
	long := strings.Repeat("n", 255)
	must(t, r.WriteFile(long, []byte("x"), 0o644))
	if data, err := r.ReadFile(long); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestRootWriteFileAtOnce(t *testing.T) {
	r, _, _ := hostile(t)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			if err := r.WriteFile("f", bytes.Repeat([]byte{byte('a' + i)}, 1<<16), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	data, err := r.ReadFile("f")
	if err != nil || len(data) != 1<<16 || len(bytes.Trim(data, string(data[:1]))) != 0 {
		t.Errorf("%d bytes, mixed, %v", len(data), err)
	}
}

func TestRootMkdirAll(t *testing.T) {
	r, inside, outside := hostile(t)
	must(t, r.MkdirAll("a/b/c", 0o750))
	must(t, r.MkdirAll("/a/b/c/", 0o750))
	must(t, r.MkdirAll("/", 0o750))
	if st, err := os.Stat(filepath.Join(inside, "a/b/c")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(filepath.Join(inside, "file"), nil, 0o644))
	must(t, os.Symlink("/nowhere", filepath.Join(inside, "dangling")))
	must(t, os.Symlink(outside, filepath.Join(inside, "out")))
	must(t, os.Symlink("loop", filepath.Join(inside, "loop")))
	for _, name := range []string{"file", "file/x", "dangling", "dangling/x", "out", "loop", "loop/x"} {
		if err := r.MkdirAll(name, 0o755); err == nil {
			t.Errorf("%s: said to be a directory", name)
		}
	}
}

func TestRootRemove(t *testing.T) {
	r, inside, _ := hostile(t)
	must(t, r.Remove("etc"))
	must(t, r.Remove("etc"))
	must(t, r.Remove("no/such/thing"))
	must(t, os.MkdirAll(filepath.Join(inside, "full/x"), 0o755))
	if err := r.Remove("full"); err == nil {
		t.Error("removed a directory that is not empty")
	}
	for _, name := range []string{"", "/", ".", "..", "a/.."} {
		if err := r.Remove(name); err == nil {
			t.Errorf("removed %q", name)
		}
		if err := r.WriteFile(name, nil, 0o644); err == nil {
			t.Errorf("wrote %q", name)
		}
	}
}

func TestRootReadDir(t *testing.T) {
	r, inside, _ := hostile(t)
	if list, err := r.ReadDir("missing"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	for _, f := range []string{"c", "a", "b"} {
		must(t, os.WriteFile(filepath.Join(inside, "etc", f), nil, 0o644))
	}
	list, err := r.ReadDir("etc")
	if err != nil || len(list) != 3 || list[0].Name() != "a" || list[2].Name() != "c" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := r.ReadDir("etc/a"); err == nil {
		t.Error("listed a file")
	}
}

func TestRootWhiteout(t *testing.T) {
	r, inside, _ := hostile(t)
	if err := r.Whiteout("etc/w"); errors.Is(err, unix.EPERM) {
		skip(t, fmt.Sprintf("this kernel leaves whiteouts to root: %v", err))
	} else if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(inside, "etc/w"), &st))
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("mode %o, device %d", st.Mode, st.Rdev)
	}
	if err := r.Whiteout("etc/w"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another: %v", err)
	}
}

func TestOpenRootOfFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, name := range []string{file, file + "missing"} {
		if r, err := OpenRoot(name); err == nil {
			t.Errorf("%s is a root: %v", name, r.Name())
		}
	}
}

// TestReplaceFile: what was there goes, whatever it was, and nothing is
// followed.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for _, err := range []error{
		os.WriteFile(outside, []byte("host"), 0o644), os.Symlink(outside, filepath.Join(dir, "link")),
		os.WriteFile(filepath.Join(dir, "file"), []byte("old and longer"), 0o600), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"link", "file", "pipe", "new"} {
		if err := root.ReplaceFile(name, []byte("new"), 0o644); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o644 || st.Size() != 3 {
			t.Errorf("%s is %v, %v", name, st, err)
		}
	}
	if data, _ := os.ReadFile(outside); string(data) != "host" {
		t.Errorf("the file outside holds %q", data)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
