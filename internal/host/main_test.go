package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperEnv makes the test program play another process: it does what the
// words say, one after another.
const helperEnv = "ZONE_TEST_HELPER"

func TestMain(m *testing.M) {
	if words := os.Getenv(helperEnv); words != "" {
		os.Exit(help(strings.Fields(words)))
	}
	os.Exit(m.Run())
}

// skip counts a skip as hosttest.Skip does, which imports this package and so
// cannot serve its own tests.
func skip(t *testing.T, reason string) {
	t.Helper()
	if file := os.Getenv("ZONE_TEST_SKIPS"); file != "" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err == nil {
			_, err = fmt.Fprintf(f, "%s\t%s\n", t.Name(), reason)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatalf("note the skip: %v", err)
		}
	}
	t.Skip(reason)
}

func help(words []string) int {
	for _, w := range words {
		verb, arg, _ := strings.Cut(w, "=")
		if err := helpWith(verb, arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

func helpWith(verb, arg string) error {
	switch verb {
	case "enter":
		if err := EnterPrivateMounts(arg); err != nil {
			return err
		}
		fmt.Println(inodeOf("/proc/self/ns/mnt"))
	case "release":
		return ReleasePrivateMounts(arg)
	case "lock":
		_, err := TryLock(arg)
		if err == nil {
			fmt.Println("locked")
		}
		return err
	case "mount":
		if err := os.MkdirAll(arg, 0o700); err != nil {
			return err
		}
		return unix.Mount("zone-test", arg, "tmpfs", 0, "size=1m")
	case "write":
		return os.WriteFile(arg, []byte("x"), 0o600)
	case "see":
		_, err := os.Stat(arg)
		return err
	case "find":
		return onOwnThread(func() error {
			fd, err := findMounts(filepath.Join(arg, "ns", "mnt"))
			if err != nil {
				return err
			}
			return joinMounts(fd)
		})
	case "env":
		if v, ok := os.LookupEnv(insideEnv); ok {
			return fmt.Errorf("the environment tells %s", v)
		}
	case "die":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case "wait":
		fmt.Println("waiting")
		time.Sleep(time.Minute)
	}
	return nil
}

// helper returns a command that plays another process.
func helper(words ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+strings.Join(words, " "))
	return cmd
}

// startHelper starts a helper, returns when it said the line, and kills it at
// the end of the test.
func startHelper(t *testing.T, line string, words ...string) *exec.Cmd {
	t.Helper()
	cmd := helper(words...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == line {
			return cmd
		}
	}
	t.Fatalf("%v ended without %q", words, line)
	return nil
}
