package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends every process in the group and below it, and returns when none is
// left. It can wait for long, for instance on a process in the middle of a
// dead device's I/O: when ctx ends first, the error names the processes left.
func (g Group) Kill(ctx context.Context) error {
	if g.path == "/" {
		return errors.New("kill group /: is the root")
	}
	pause := 200 * time.Microsecond
	for {
		if err := g.killOnce(ctx); err != nil {
			return fmt.Errorf("kill group %s: %w", g.path, err)
		}
		populated, err := g.Populated()
		if err != nil || !populated {
			return err
		}
		select {
		case <-ctx.Done():
			left, _ := g.Procs()
			return fmt.Errorf("kill group %s: processes left: %s: %w", g.path, describe(left), ctx.Err())
		case <-time.After(pause):
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// killOnce sends SIGKILL to all that are in the group now. Where the kernel
// can do it at once (cgroup.kill, 5.14) nothing escapes; elsewhere the group is
// frozen first, so that it cannot fork faster than it is killed. Processes that
// are in a v1 hierarchy only are killed one by one in both cases.
func (g Group) killOnce(ctx context.Context) error {
	atOnce := false
	if dir := g.unified(); dir != "" {
		atOnce = writeFile(filepath.Join(dir, "cgroup.kill"), "1") == nil
	}
	if !atOnce {
		brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_ = g.Freeze(brief) // not frozen in time: the caller's loop goes on killing
		cancel()
	}
	err := g.killEach()
	// On v1 a frozen process ends only once it is thawed.
	return errors.Join(err, g.Thaw())
}

// killEach kills the processes one by one. A process id is used only after
// the group was seen to hold it with the process pinned by a descriptor, so an
// id that was given to another process meanwhile is never hit.
func (g Group) killEach() error {
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(pids, 128) {
		if err := g.killBatch(batch); err != nil {
			return err
		}
	}
	return nil
}

func (g Group) killBatch(pids []int) error {
	fds := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			fds[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
	}
	still, err := g.Procs()
	if err != nil {
		return err
	}
	for pid, fd := range fds {
		if _, in := slices.BinarySearch(still, pid); !in {
			continue
		}
		err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// Freeze stops all processes of the group and returns when they stand still.
// When ctx ends before that, the group is thawed again.
func (g Group) Freeze(ctx context.Context) error {
	if g.path == "/" {
		return errors.New("freeze group /: is the root")
	}
	err := g.setFrozen(true)
	for pause := 200 * time.Microsecond; err == nil && !g.Frozen(); pause = min(2*pause, 10*time.Millisecond) {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(pause):
		}
	}
	if err != nil {
		return fmt.Errorf("freeze group %s: %w", g.path, errors.Join(err, g.Thaw()))
	}
	return nil
}

// Thaw lets the group run, whichever of cgroup2 and the v1 freezer stopped it.
// It is success for a group that runs or is gone.
func (g Group) Thaw() error {
	if err := g.setFrozen(false); err != nil {
		return fmt.Errorf("thaw group %s: %w", g.path, err)
	}
	return nil
}

// Frozen reports whether all processes of the group stand still.
func (g Group) Frozen() bool {
	if dir := g.unified(); dir != "" {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if keyedValue(b, "frozen") == 1 {
			return true
		}
	}
	if m := g.tree.v1["freezer"]; m != "" {
		b, _ := os.ReadFile(filepath.Join(m, g.path, "freezer.state"))
		return string(bytes.TrimSpace(b)) == "FROZEN"
	}
	return false
}

func (g Group) setFrozen(frozen bool) error {
	if dir := g.unified(); dir != "" {
		err := writeFile(filepath.Join(dir, "cgroup.freeze"), map[bool]string{true: "1", false: "0"}[frozen])
		if frozen || (err != nil && !gone(err)) {
			return err
		}
	}
	m := g.tree.v1["freezer"]
	if m == "" {
		if frozen {
			return errors.New("the host has no freezer")
		}
		return nil
	}
	state := map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
	err := writeFile(filepath.Join(m, g.path, "freezer.state"), state)
	if frozen {
		return err
	}
	return ignoreGone(err)
}

// describe names processes for a message: "17 (dd, D), 18 (sh, S)".
func describe(pids []int) string {
	var b strings.Builder
	for i, pid := range pids {
		if i == 8 {
			fmt.Fprintf(&b, " and %d more", len(pids)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fmt.Fprintf(&b, "%d (%s)", pid, commAndState(string(stat)))
	}
	return b.String()
}

func commAndState(stat string) string {
	from, to := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if from < 0 || to < from || to+3 > len(stat) {
		return "ended"
	}
	return fmt.Sprintf("%q, state %s", stat[from+1:to], stat[to+2:to+3])
}
