package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func rights() []feature {
	return []feature{
		{"CAP_SYS_ADMIN", "mounts and namespaces", "run as root, outside an unprivileged container", true, capability(unix.CAP_SYS_ADMIN)},
		{"CAP_NET_ADMIN", "links and addresses of zones", "run as root, outside an unprivileged container", true, capability(unix.CAP_NET_ADMIN)},
		{"CAP_SYS_RESOURCE", "resource limits above the host's hard limits", "give the capability; without it the host's hard limits are the ceiling", false, capability(unix.CAP_SYS_RESOURCE)},
	}
}

func capability(bit uint) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		s, err := o.read("proc/self/status")
		if err != nil {
			return Missing, err.Error()
		}
		for line := range strings.Lines(s) {
			if mask, ok := strings.CutPrefix(line, "CapEff:"); ok {
				n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
				return present(err == nil && n>>bit&1 == 1, "")
			}
		}
		return Missing, "not told by the kernel"
	}
}

func namespaces() []feature {
	var fs []feature
	for _, ns := range []struct {
		name, needed, option string
		required             bool
	}{
		{"mnt", "a zone's own mounts", "CONFIG_NAMESPACES", true},
		{"pid", "a zone's own processes", "CONFIG_PID_NS", true},
		{"net", "a zone's own network", "CONFIG_NET_NS", true},
		{"uts", "a zone's own host name", "CONFIG_UTS_NS", true},
		{"ipc", "a zone's own shared memory", "CONFIG_IPC_NS", true},
		{"cgroup", "a zone's own view of control groups", "CONFIG_CGROUPS", true},
		{"user", "user ids of its own for each zone", "CONFIG_USER_NS", false},
		{"time", "a zone's own uptime", "CONFIG_TIME_NS", false},
	} {
		fs = append(fs, feature{
			"namespace " + ns.name, ns.needed, "a kernel with " + ns.option, ns.required,
			func(_ context.Context, o Options) (Status, string) {
				return present(o.exists("proc/self/ns/"+ns.name), "")
			},
		})
	}
	return fs
}

func cgroups() []feature {
	fs := []feature{{
		"cgroup layout", "limits and accounting of zones", "mount -t cgroup2 cgroup2 /sys/fs/cgroup", true,
		func(_ context.Context, o Options) (Status, string) {
			layout, _ := o.controllers()
			return present(layout != "", layout)
		},
	}}
	for _, c := range []struct {
		name, needed string
		required     bool
	}{
		{"cpu", "CPU caps and shares", true},
		{"memory", "memory caps", true},
		{"pids", "caps on tasks", true},
		{"cpuset", "CPUs of a zone's own", false},
		{"io", "I/O caps", false},
	} {
		fs = append(fs, feature{
			"controller " + c.name, c.needed, "boot with cgroup_enable=" + c.name + ", or a kernel with that controller", c.required,
			func(_ context.Context, o Options) (Status, string) {
				_, have := o.controllers()
				if c.name == "io" && slices.Contains(have, "blkio") {
					return Present, "as blkio (v1): buffered writes are not counted"
				}
				return present(slices.Contains(have, c.name), "")
			},
		})
	}
	return append(fs, feature{
		"swap accounting", "swap caps", "boot with swapaccount=1", false,
		func(_ context.Context, o Options) (Status, string) { return o.swapAccounting() },
	})
}

// mount is the part of a mountinfo line that is looked at here.
type mount struct{ point, fsType, options string }

func (o Options) mounts() []mount {
	s, _ := o.read("proc/self/mountinfo")
	var ms []mount
	for line := range strings.Lines(s) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if ok && len(l) > 4 && len(r) > 2 {
			ms = append(ms, mount{l[4], r[0], r[2]})
		}
	}
	return ms
}

// controllers returns the layout of the control groups, "" for none, and the
// controllers of all hierarchies.
func (o Options) controllers() (layout string, have []string) {
	unified, v1 := false, false
	for _, m := range o.mounts() {
		switch m.fsType {
		case "cgroup2":
			unified = true
			s, _ := o.read(filepath.Join(m.point, "cgroup.controllers"))
			have = append(have, strings.Fields(s)...)
		case "cgroup":
			if !strings.Contains(m.options, "name=") {
				v1 = true
				have = append(have, strings.Split(m.options, ",")...)
			}
		}
	}
	switch {
	case v1 && unified:
		return "hybrid", have
	case v1:
		return "v1", have
	case unified:
		return "v2", have
	}
	return "", nil
}

func (o Options) swapAccounting() (Status, string) {
	for _, m := range o.mounts() {
		dir := filepath.Join(o.Root, m.point)
		switch {
		case m.fsType == "cgroup" && slices.Contains(strings.Split(m.options, ","), "memory"):
			return present(o.exists(filepath.Join(m.point, "memory.memsw.limit_in_bytes")), "")
		case m.fsType == "cgroup2":
			// The root has no such file; any group below it does.
			if found, _ := filepath.Glob(filepath.Join(dir, "*/memory.swap.max")); len(found) > 0 {
				return Present, ""
			}
		}
	}
	return Missing, ""
}

func watching() []feature {
	return []feature{
		{"pressure (PSI)", "waiting time in zone stat", "boot with psi=1", false, readable("proc/pressure/cpu")},
		{"BPF", "zone trace and zone prstat", "a kernel with CONFIG_BPF_SYSCALL, and root", false, func(context.Context, Options) (Status, string) { return tried(tryBPF(), "") }},
		{"BPF type information", "zone trace and zone prstat", "a kernel with CONFIG_DEBUG_INFO_BTF", false, readable("sys/kernel/btf/vmlinux")},
		{"delay accounting", "reasons of waiting per thread", "sysctl -w kernel.task_delayacct=1", false, sysctlAtLeast("kernel/task_delayacct", 1)},
		{"inotify instances", "services inside many zones", "sysctl -w fs.inotify.max_user_instances=8192", false, sysctlAtLeast("fs/inotify/max_user_instances", 1024)},
		{"inotify watches", "services inside many zones", "sysctl -w fs.inotify.max_user_watches=1048576", false, sysctlAtLeast("fs/inotify/max_user_watches", 65536)},
		{"systemd", "booting zones with the host", "have the host's own init run zone boot", false, func(_ context.Context, o Options) (Status, string) {
			comm, _ := o.read("proc/1/comm")
			return present(comm == "systemd", "process 1 is "+comm)
		}},
		{"KVM", "zones that are virtual machines", "turn on virtualisation in the firmware, or nested in the hypervisor", false, tryKVM},
	}
}

// readable asks for the first byte: some files are there but say
// "not supported" when read.
func readable(name string) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		f, err := os.Open(filepath.Join(o.Root, name))
		if err == nil {
			_, err = f.Read(make([]byte, 1))
			_ = f.Close()
		}
		return tried(err, "")
	}
}

// sysctlAtLeast is partial below the wanted value.
func sysctlAtLeast(name string, want int) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		s, err := o.read("proc/sys/" + name)
		if err != nil {
			return Missing, "the kernel has no such setting"
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < want {
			return Partial, s
		}
		return Present, s
	}
}

// kernelFileSystem asks the kernel for a file system of a type, which loads
// its module the way mounting does.
func kernelFileSystem(name string) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		fd, err := unix.Fsopen(name, unix.FSOPEN_CLOEXEC)
		if err == nil {
			_ = unix.Close(fd)
			return Present, ""
		}
		if errors.Is(err, unix.ENODEV) {
			return Missing, "not known to the kernel"
		}
		s, _ := o.read("proc/filesystems") // not allowed to ask: see what is loaded
		return present(slices.Contains(strings.Fields(s), name), fmt.Sprintf("not tried: %v", err))
	}
}
