package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"zone/internal/host/hosttest"
)

// built is the program under test, built once for a whole run of the tests.
var built = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("ZONE_BINARY"); given != "" {
		return filepath.Abs(given)
	}
	dir, err := os.MkdirTemp("", "zone-binary-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "zone")
	c := exec.Command("go", "build", "-o", file, "zone/cmd/zone")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build zone: %w\n%s", err, out)
	}
	return file, nil
})

// Binary returns the program under test: $ZONE_BINARY, or one built from the
// sources.
func Binary(t testing.TB) string {
	t.Helper()
	file, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Main runs the tests of a package between two sweeps: what an earlier run
// left because it was killed is removed first.
func Main(m *testing.M) int {
	if os.Geteuid() == 0 {
		sweep()
	}
	code := m.Run()
	if os.Getenv("ZONE_BINARY") == "" {
		if file, err := built(); err == nil {
			_ = os.RemoveAll(filepath.Dir(file))
		}
	}
	return code
}

// cacheDir keeps roots of Debian from one run to the next.
func cacheDir() string {
	if dir := os.Getenv("ZONE_TEST_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/zone-test"
}

// The roots that tests use.
var (
	bare    = root{name: "base"}
	systemd = root{name: "systemd", include: "systemd-sysv,procps,openssh-server"}
)

type root struct{ name, include string }

// tar returns the archive of the root, made on first use on this machine.
func (r root) tar(t testing.TB) string {
	t.Helper()
	if err := os.MkdirAll(cacheDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cacheDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	// What is in the archive is in its name, so a changed list makes a new one.
	file := filepath.Join(cacheDir(), strings.Join([]string{"bookworm", r.name, strings.ReplaceAll(r.include, ",", "+")}, "_")+".tar")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	hosttest.Require(t, hosttest.Tool("mmdebstrap"))
	unfinished := file + ".unfinished.tar"
	args := []string{"--mode=root", "--variant=minbase"}
	if r.include != "" {
		args = append(args, "--include="+r.include)
	}
	if out, err := exec.Command("mmdebstrap", append(args, "bookworm", unfinished)...).CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	if err := os.Rename(unfinished, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// BaseImage makes the image base: the smallest Debian, without an init.
func (m *Machine) BaseImage() {
	m.t.Helper()
	m.Must("image", "build", "base", "--from", "tar:"+bare.tar(m.t))
}

// SystemdImage makes the image systemd: Debian with systemd and an ssh server.
func (m *Machine) SystemdImage() {
	m.t.Helper()
	m.Must("image", "build", "systemd", "--from", "tar:"+systemd.tar(m.t))
}
