package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

// Directories of the host in a zone: read-only down to what is mounted below,
// or written through, and refused where they would lead to the host.
func TestFileSystems(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	data := t.TempDir()
	sub, rw := filepath.Join(data, "ro/sub"), filepath.Join(data, "rw")
	for _, d := range []string{sub, rw} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Before the program makes its own view of the host's mounts.
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sub, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for file, text := range map[string]string{filepath.Join(data, "ro/f"): "from the host", filepath.Join(sub, "g"): "mounted"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a")
	m.Must("config", "add", "a", "fs", "dir=/srv/new/ro", "special="+data+"/ro")
	m.Must("config", "add", "a", "fs", "dir=/srv/rw", "special="+rw, "options=rw")
	m.Must("boot", "a")

	if got := m.Exec("a", "cat /srv/new/ro/f /srv/new/ro/sub/g"); got != "from the hostmounted" {
		t.Errorf("inside: %q", got)
	}
	for _, dir := range []string{"/srv/new/ro", "/srv/new/ro/sub"} {
		if r := m.Try("exec", "a", "--", "touch", dir+"/x"); r.Code == 0 || !strings.Contains(r.Stderr, "Read-only") {
			t.Errorf("writing to %s: %d %s", dir, r.Code, r.Stderr)
		}
	}
	m.Exec("a", "echo back >/srv/rw/h; mknod /srv/rw/null c 1 3")
	if b, err := os.ReadFile(filepath.Join(rw, "h")); err != nil || string(b) != "back\n" {
		t.Errorf("outside: %q, %v", b, err)
	}
	if r := m.Try("exec", "a", "--", "sh", "-c", "echo x >/srv/rw/null"); r.Code == 0 {
		t.Error("a device on a directory of the host can be used")
	}
	fsChanges(t, m, data)
	fsRefusals(t, m, data)
}

// fsChanges sees that an entry waits for the next boot, and goes with it.
func fsChanges(t *testing.T, m *machine.Machine, data string) {
	t.Helper()
	r := m.Try("config", "remove", "a", "fs", "dir=/srv/rw")
	if r.Code != 0 || !strings.Contains(r.Stderr, "fs takes effect at the next boot") {
		t.Errorf("remove: %d %s", r.Code, r.Stderr)
	}
	m.Exec("a", "test -e /srv/rw/h")
	m.Must("reboot", "a")
	m.Exec("a", "test ! -e /srv/rw/h && test -e /srv/new/ro/f")
	m.Must("halt", "a")
	if b, err := os.ReadFile(filepath.Join(data, "ro/f")); err != nil || string(b) != "from the host" {
		t.Errorf("after halt: %q, %v", b, err)
	}
}

func fsRefusals(t *testing.T, m *machine.Machine, data string) {
	t.Helper()
	if err := os.Symlink("/etc", filepath.Join(data, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code int
		word string
		args []string
	}{
		{2, "lies in /proc", []string{"dir=/mnt", "special=/proc/sys"}},
		{2, "needs special", []string{"dir=/mnt"}},
		{13, "symbolic link", []string{"dir=/mnt", "special=" + data + "/link"}},
		{13, "holds zones", []string{"dir=/mnt", "special=" + m.Home}},
		{13, "does not exist", []string{"dir=/mnt", "special=" + data + "/nowhere"}},
		{13, "options=ro", []string{"dir=/mnt", "special=/etc", "options=rw"}},
	} {
		m.Refused(c.code, []string{c.word}, append([]string{"config", "add", "a", "fs"}, c.args...)...)
	}
	m.Refused(10, []string{"no entry with dir=/nope"}, "config", "remove", "a", "fs", "dir=/nope")
	// What goes missing after it was set stops the boot.
	m.Must("config", "add", "a", "fs", "dir=/mnt/gone", "special="+data+"/rw")
	if err := os.RemoveAll(filepath.Join(data, "rw")); err != nil {
		t.Fatal(err)
	}
	m.Refused(13, []string{"does not exist", "config remove a fs dir=/mnt/gone"}, "boot", "a")
	m.Expect("a", "installed")
}
