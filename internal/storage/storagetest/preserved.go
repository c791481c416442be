package storagetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/storage"
)

// testPreserved makes a file of every kind and looks at each in a snapshot.
func testPreserved(t *testing.T, p storage.Pool) {
	ctx := context.Background()
	must(t, p.Create(ctx, "a"))
	root := p.Path("a")
	write(t, p, "a", "file", "content")
	must(t, os.Chmod(filepath.Join(root, "file"), 0o4751|os.ModeSetuid))
	must(t, os.Link(filepath.Join(root, "file"), filepath.Join(root, "hard")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(root, "link")))
	must(t, os.Mkdir(filepath.Join(root, "empty"), 0o711))
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o640))
	must(t, unix.Setxattr(filepath.Join(root, "file"), "user.test", []byte("value"), 0))
	sparse := filepath.Join(root, "sparse")
	must(t, os.WriteFile(sparse, []byte("head"), 0o600))
	must(t, os.Truncate(sparse, 64<<20))
	privileged := os.Geteuid() == 0
	if privileged {
		must(t, unix.Mknod(filepath.Join(root, "whiteout"), unix.S_IFCHR, 0))
		must(t, os.Lchown(filepath.Join(root, "link"), 12, 34))
		must(t, os.Lchown(filepath.Join(root, "empty"), 1000, 1001))
		must(t, unix.Setxattr(filepath.Join(root, "empty"), "trusted.overlay.opaque", []byte("y"), 0))
		must(t, unix.Setxattr(filepath.Join(root, "hard"), "security.capability",
			[]byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	}
	old := time.Unix(1_500_000_000, 123456789)
	for _, name := range []string{"file", "empty", "."} {
		must(t, os.Chtimes(filepath.Join(root, name), old, old))
	}
	must(t, os.Chmod(root, 0o750))

	must(t, p.Snapshot(ctx, "a", "b", true))
	copied := p.Path("b")
	names := []string{".", "file", "hard", "link", "empty", "fifo", "sparse"}
	if privileged {
		names = append(names, "whiteout")
	}
	for _, name := range names {
		same(t, filepath.Join(root, name), filepath.Join(copied, name))
	}
	wantContent(t, p, "b", "file", "content")
	if to, err := os.Readlink(filepath.Join(copied, "link")); err != nil || to != "/etc/passwd" {
		t.Errorf("link leads to %q, %v", to, err)
	}
	a, _ := os.Stat(filepath.Join(copied, "file"))
	b, _ := os.Stat(filepath.Join(copied, "hard"))
	if !os.SameFile(a, b) {
		t.Error("a hard link became a file of its own")
	}
	sameAttribute(t, root, copied, "file", "user.test")
	if privileged {
		sameAttribute(t, root, copied, "empty", "trusted.overlay.opaque")
		sameAttribute(t, root, copied, "file", "security.capability")
	}
}

// same compares what stat tells of two files.
func same(t *testing.T, a, b string) {
	t.Helper()
	var x, y unix.Stat_t
	must(t, unix.Lstat(a, &x))
	must(t, unix.Lstat(b, &y))
	if x.Mode != y.Mode || x.Uid != y.Uid || x.Gid != y.Gid || x.Rdev != y.Rdev {
		t.Errorf("%s: mode %o owner %d:%d device %d became mode %o owner %d:%d device %d",
			a, x.Mode, x.Uid, x.Gid, x.Rdev, y.Mode, y.Uid, y.Gid, y.Rdev)
	}
	isDir := x.Mode&unix.S_IFMT == unix.S_IFDIR
	if x.Mtim != y.Mtim || (!isDir && (x.Size != y.Size || x.Nlink != y.Nlink)) {
		t.Errorf("%s: time %v size %d links %d became time %v size %d links %d",
			a, x.Mtim, x.Size, x.Nlink, y.Mtim, y.Size, y.Nlink)
	}
	if y.Blocks > x.Blocks+16 {
		t.Errorf("%s: %d blocks became %d", a, x.Blocks, y.Blocks)
	}
}

func sameAttribute(t *testing.T, a, b, name, attribute string) {
	t.Helper()
	x, y := make([]byte, 100), make([]byte, 100)
	n, err := unix.Getxattr(filepath.Join(a, name), attribute, x)
	must(t, err)
	m, err := unix.Getxattr(filepath.Join(b, name), attribute, y)
	if err != nil || string(x[:n]) != string(y[:m]) {
		t.Errorf("%s of %s: %q became %q, %v", attribute, name, x[:n], y[:max(m, 0)], err)
	}
}
