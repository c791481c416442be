package zone

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"zone/internal/host"
	"zone/internal/runtime"
)

// fakeEngine runs a sleep as the first process of each container and keeps to
// runc's rules: no name twice, start only once, no deletion while it runs.
type fakeEngine struct {
	w   *world
	dir string
}

func (e *fakeEngine) Create(_ context.Context, id, bundle string, log *os.File) (pid int, err error) {
	err = e.w.call("engine create", func() error {
		if e.Known(id) {
			return fmt.Errorf("container %s exists", id)
		}
		var spec specs.Spec
		if err := host.ReadJSON(filepath.Join(bundle, "config.json"), &spec); err != nil {
			return err
		}
		for _, f := range []string{"etc/hostname", "etc/machine-id"} { // the root is mounted
			if _, err := os.Stat(filepath.Join(spec.Root.Path, f)); err != nil {
				return err
			}
		}
		cmd := exec.Command("sleep", "300")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		go cmd.Wait()
		pid = cmd.Process.Pid
		put(filepath.Join(e.dir, id), "created "+strconv.Itoa(pid))
		group := filepath.Join(e.w.base, "host/sys/fs/cgroup", spec.Linux.CgroupsPath)
		put(filepath.Join(group, "cgroup.procs"), strconv.Itoa(pid)+"\n")
		if m := spec.Linux.Resources.Memory; m != nil && m.Limit != nil {
			put(filepath.Join(group, "memory.max"), fmt.Sprintln(*m.Limit))
		}
		fmt.Fprintln(log, "created")
		return nil
	})
	return pid, err
}

func (e *fakeEngine) state(id string) (state string, pid int) {
	b, _ := os.ReadFile(filepath.Join(e.dir, id))
	state, number, _ := strings.Cut(string(b), " ")
	pid, _ = strconv.Atoi(number)
	return state, pid
}

func (e *fakeEngine) Start(_ context.Context, id, _ string) error {
	return e.w.call("engine start", func() error {
		state, pid := e.state(id)
		if state != "created" {
			return fmt.Errorf("cannot start a container that is %q", state)
		}
		put(filepath.Join(e.dir, id), "running "+strconv.Itoa(pid))
		return nil
	})
}

func (e *fakeEngine) Delete(_ context.Context, id string) error {
	return e.w.call("engine delete", func() error {
		if _, pid := e.state(id); pid > 0 && alivePID(pid) {
			return fmt.Errorf("container %s runs", id)
		}
		return removeIfThere(filepath.Join(e.dir, id))
	})
}

func (e *fakeEngine) Known(id string) bool {
	_, err := os.Stat(filepath.Join(e.dir, id))
	return err == nil
}

func (e *fakeEngine) ExecArgv(id string, o runtime.ExecOptions) []string {
	return append([]string{"engine", "exec", id}, o.Args...)
}

// playKernel takes processes that ended out of the cgroups of the fixture, as
// the kernel does, until the test ends.
func (w *world) playKernel(t *testing.T) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			groups, _ := filepath.Glob(filepath.Join(w.base, "host/sys/fs/cgroup/zone-*/*/cgroup.procs"))
			for _, file := range groups {
				pid, err := strconv.Atoi(strings.TrimSpace(get(file)))
				if err != nil || alivePID(pid) {
					continue
				}
				for _, f := range names(filepath.Dir(file)) {
					if f != filepath.Base(file) {
						_ = os.Remove(filepath.Join(filepath.Dir(file), f))
					}
				}
				_ = os.Remove(file) // last: without it the group counts as empty
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		for _, id := range names(filepath.Join(w.base, "engine")) {
			if _, pid := (&fakeEngine{dir: filepath.Join(w.base, "engine")}).state(id); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
}
