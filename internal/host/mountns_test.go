package host

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needMounts skips without the right to mount. (hosttest imports this package,
// so its Require cannot be used here.)
func needMounts(t *testing.T) {
	t.Helper()
	err := WithThrowawayMounts(func() error { return nil })
	if errors.Is(err, unix.EPERM) {
		skip(t, "needs root")
	}
	must(t, err)
}

// newRunDir makes a run directory whose namespace is unpinned at the end.
func newRunDir(t *testing.T) string {
	t.Helper()
	needMounts(t)
	run := filepath.Join(t.TempDir(), "run")
	t.Cleanup(func() {
		if err := ReleasePrivateMounts(run); err != nil {
			t.Error(err)
		}
		if mounted(t, run) {
			t.Error("mounts are left")
		}
	})
	return run
}

// mounted reports whether this process sees any mount below dir.
func mounted(t *testing.T, dir string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return strings.Contains(string(b), " "+dir+"/")
}

// play runs a helper to its end and returns what it printed.
func play(t *testing.T, words ...string) string {
	t.Helper()
	cmd := helper(words...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err != nil && ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%v: %v: %s", words, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

func TestPrivateMountsOutliveTheirProcesses(t *testing.T) {
	run := newRunDir(t)
	pool := filepath.Join(run, "pools/tank")
	first := play(t, "enter="+run, "env", "mount="+pool, "write="+pool+"/file", "die")
	if first == "" || first == inodeOf("/proc/self/ns/mnt") {
		t.Fatalf("namespace %q", first)
	}
	if _, err := os.Stat(pool + "/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount is seen outside: %v", err)
	}
	if again := play(t, "enter="+run, "see="+pool+"/file"); again != first {
		t.Errorf("entered %s, then %s", first, again)
	}
	other := newRunDir(t)
	if ns := play(t, "enter="+other); ns == first {
		t.Error("two run directories share a namespace")
	}
}

func TestEnterAtOnce(t *testing.T) {
	run := newRunDir(t)
	results := make(chan string, 4)
	for range cap(results) {
		go func() {
			out, err := helper("enter=" + run).CombinedOutput()
			if err != nil {
				out = append(out, err.Error()...)
			}
			results <- string(out)
		}()
	}
	first := <-results
	for range cap(results) - 1 {
		if r := <-results; r != first || !strings.HasSuffix(r, "\n") {
			t.Errorf("%q and %q", first, r)
		}
	}
}

// Somebody else's copy of the host's mounts, made before or after, must not
// keep the pool's mount.
func TestCopiesKeepNothing(t *testing.T) {
	run := newRunDir(t)
	if _, err := exec.LookPath("unshare"); err != nil {
		skip(t, "needs unshare")
	}
	pool := filepath.Join(run, "pools/tank")
	play(t, "enter="+run, "mount="+pool)
	for _, propagation := range []string{"private", "slave", "unchanged"} {
		cmd := exec.Command("unshare", "-m", "--propagation", propagation, "cat")
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		time.Sleep(20 * time.Millisecond)
		b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/mountinfo")
		must(t, err)
		if strings.Contains(string(b), pool) || strings.Contains(string(b), run+"/ns/mnt") {
			t.Errorf("%s: a copy has the pool or the pin", propagation)
		}
	}
	must(t, ReleasePrivateMounts(run))
	if mounted(t, run) {
		t.Error("still pinned here")
	}
	if ns := play(t, "enter="+run); ns == "" {
		t.Error("no new namespace")
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), pool) {
		t.Error("the pool is mounted on the host")
	}
}

func TestReleaseFromWithin(t *testing.T) {
	run := newRunDir(t)
	play(t, "enter="+run, "release="+run)
	if mounted(t, run) {
		t.Error("still pinned")
	}
	must(t, ReleasePrivateMounts(run)) // again is success
}

// Where the first process's namespace may not be opened, any other process of
// the same namespace does, and none of a copy.
func TestFindMounts(t *testing.T) {
	run := newRunDir(t)
	play(t, "enter="+run)
	pin := filepath.Join(run, "ns/mnt")
	fd, err := findMounts(pin)
	must(t, err)
	defer unix.Close(fd)
	var found, mine unix.Stat_t
	must(t, unix.Fstat(fd, &found))
	must(t, unix.Stat("/proc/self/ns/mnt", &mine))
	if found.Ino != mine.Ino {
		t.Errorf("found namespace %d, the pin is in %d", found.Ino, mine.Ino)
	}
	play(t, "enter="+run, "find="+run)
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(run, link))
	if fd, err := findMounts(filepath.Join(link, "ns/mnt")); err != nil {
		t.Errorf("through a link: %v", err)
	} else {
		_ = unix.Close(fd)
	}
	must(t, ReleasePrivateMounts(run))
	if _, err := findMounts(pin); !errors.Is(err, errNoNamespace) {
		t.Errorf("found what is unpinned: %v", err)
	}
}

// What a call that was killed while pinning leaves must not pile up.
func TestPinAfterHalfAPin(t *testing.T) {
	run := newRunDir(t)
	dir := filepath.Join(run, "ns")
	must(t, os.MkdirAll(dir, 0o700))
	for range 2 {
		must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	}
	must(t, os.WriteFile(filepath.Join(dir, "mnt"), nil, 0o600))
	if first := play(t, "enter="+run); first == "" || first != play(t, "enter="+run) {
		t.Error("not pinned")
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if n := strings.Count(string(b), " "+dir+" "); n != 1 {
		t.Errorf("%d mounts at %s", n, dir)
	}
}

func TestThrowawayMounts(t *testing.T) {
	needMounts(t)
	dir := t.TempDir()
	before := inodeOf("/proc/self/ns/mnt")
	err := WithThrowawayMounts(func() error {
		if err := unix.Mount("zone-test", dir, "tmpfs", 0, "size=1m"); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
			return err
		}
		// Programs started by f see what it mounted.
		_, err := Exec{}.Run(t.Context(), Cmd{Name: "test", Args: []string{"-e", dir + "/file"}})
		return err
	})
	must(t, err)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), dir) {
		t.Error("a mount is left")
	}
	if inodeOf("/proc/self/ns/mnt") != before {
		t.Error("the process changed its namespace")
	}
	boom := errors.New("boom")
	if err := WithThrowawayMounts(func() error { return boom }); err != boom {
		t.Errorf("%v", err)
	}
	// No thread that came out of it is used again.
	for range 50 {
		ns := make(chan string)
		go func() { ns <- inodeOf("/proc/thread-self/ns/mnt") }()
		if got := <-ns; got != before {
			t.Fatalf("a thread is in namespace %s", got)
		}
	}
}
