// Package runtime turns a zone that is to run into an OCI container: Spec
// renders the bundle's config.json as a pure function of its input, Runc
// drives the runc program. It knows nothing of pools, names or states.
package runtime

import (
	"math"
	"os"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"zone/internal/config"
)

// Container is all that the engine has to know of a zone.
type Container struct {
	Root       string   // the mounted root file system
	Hostname   string   // in its UTS namespace
	Args       []string // the first process
	Env        []string
	CgroupPath string // below every hierarchy's root
	Limits     Limits
	Mounts     []Bind
	// Capabilities that processes can have, as CAP_ names; nil is the default set.
	Capabilities []string
	Sysctl       map[string]string // of the container's own namespaces
	Locked       int64             // bytes that each process may lock in memory; 0 is the host's default
	NetworkNS    string            // path of a network namespace to join; empty for a new one
	Devices      []Device          // beside those that every container has
	// QuietSync answers fsync and its like with success without doing
	// anything: for roots that are thrown away when the host goes down.
	QuietSync bool
	// OwnCgroups lets the first process, systemd, write below its own cgroup.
	OwnCgroups bool
	// UnifiedCgroups is true where cgroup v2 holds the controllers.
	UnifiedCgroups bool
}

// Limits are the caps of a container; the zero value of a field means no cap.
type Limits struct {
	CPUs   float64 // CPUs' worth of time
	Weight int     // 1..10000, cgroup v2 scale, 100 is what others have
	Memory int64   // bytes
	Swap   int64   // bytes of swap alone; -1 forbids swap
	Pids   int64   // processes and threads
	// KillAll ends all processes when Memory does not suffice; cgroup v2 only.
	KillAll bool
}

// Bind is a host directory or file shown inside.
type Bind struct {
	Source, Destination string
	Writable            bool
	Recursive           bool // with what is mounted below Source
}

// Device is a device node inside, which the container may use.
type Device struct {
	Path         string
	Block        bool
	Major, Minor int64
	Mode         os.FileMode // permissions only
	UID, GID     uint32
}

func (d Device) kind() string {
	if d.Block {
		return "b"
	}
	return "c"
}

const cpuPeriod = 100_000 // microseconds, the kernel's own default

// sharesPerWeight converts cgroup v2 weights to v1 shares so that ratios hold:
// the default 100 is the default 1024.
const sharesPerWeight = 10.24

// Spec renders the OCI configuration.
func Spec(c Container) *specs.Spec {
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: c.Hostname,
		Root:     &specs.Root{Path: c.Root},
		Process: &specs.Process{
			Args: c.Args, Env: c.Env, Cwd: "/",
			Capabilities: capabilities(c.Capabilities),
			Rlimits:      rlimits(c),
		},
		Mounts: mounts(c.Mounts, c.OwnCgroups),
		Linux: &specs.Linux{
			CgroupsPath: c.CgroupPath,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace, Path: c.NetworkNS},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			Resources:     resources(c),
			Devices:       devices(c.Devices),
			Sysctl:        c.Sysctl,
			Seccomp:       seccomp(c.QuietSync),
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
		},
	}
}

func capabilities(names []string) *specs.LinuxCapabilities {
	if names == nil {
		names = config.Zone{}.Capabilities()
	}
	return &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
}

func rlimits(c Container) []specs.POSIXRlimit {
	if c.Locked == 0 {
		return nil
	}
	return []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: uint64(c.Locked), Soft: uint64(c.Locked)}}
}

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/kernel/debug",
	"/sys/kernel/tracing", "/sys/fs/bpf",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func mounts(binds []Bind, ownCgroups bool) []specs.Mount {
	cgroups := "ro"
	if ownCgroups {
		cgroups = "rw"
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{
			Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", cgroups},
		},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755"}},
		{Destination: "/run/lock", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=5120k"}},
	}
	for _, b := range binds {
		mode := "ro"
		if b.Writable {
			mode = "rw"
		}
		options := []string{"bind", mode, "nosuid", "nodev"}
		if b.Recursive {
			options = append([]string{"rbind", "rnosuid", "rnodev"}, options[1:]...)
			if !b.Writable { // what the host keeps read-only stays so either way
				options = append(options, "rro")
			}
		}
		m = append(m, specs.Mount{Destination: b.Destination, Type: "bind", Source: b.Source, Options: options})
	}
	return m
}

func resources(c Container) *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: deviceRules()}
	for _, d := range c.Devices {
		r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: d.kind(), Major: &d.Major, Minor: &d.Minor, Access: "rwm"})
	}
	l := c.Limits
	cpu := &specs.LinuxCPU{}
	if l.CPUs > 0 {
		quota, period := int64(math.Round(l.CPUs*cpuPeriod)), uint64(cpuPeriod)
		cpu.Quota, cpu.Period = &quota, &period
	}
	if l.Weight > 0 && c.UnifiedCgroups {
		// runc's own conversion from shares does not keep ratios.
		r.Unified = map[string]string{"cpu.weight": itoa(int64(l.Weight))}
	} else if l.Weight > 0 {
		shares := Shares(l.Weight)
		cpu.Shares = &shares
	}
	if *cpu != (specs.LinuxCPU{}) {
		r.CPU = cpu
	}
	if l.Memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l.Memory}
		if l.Swap != 0 {
			both := l.Memory + max(l.Swap, 0) // the specification counts memory and swap together
			r.Memory.Swap = &both
		}
	}
	if l.KillAll && c.UnifiedCgroups {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified["memory.oom.group"] = "1"
	}
	if l.Pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.Pids}
	}
	return r
}

// Shares converts a weight of the v2 scale to v1 cpu.shares.
func Shares(weight int) uint64 {
	return uint64(max(2, math.Round(float64(weight)*sharesPerWeight)))
}

func devices(list []Device) []specs.LinuxDevice {
	var nodes []specs.LinuxDevice
	for _, d := range list {
		nodes = append(nodes, specs.LinuxDevice{
			Path: d.Path, Type: d.kind(), Major: d.Major, Minor: d.Minor, FileMode: &d.Mode, UID: &d.UID, GID: &d.GID,
		})
	}
	return nodes
}

func deviceRules() []specs.LinuxDeviceCgroup {
	allow := func(kind string, major, minor int64) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: "rwm"}
	}
	const any = -1
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}, {136, any}} {
		rules = append(rules, allow("c", d[0], d[1]))
	}
	return rules
}

// quietCalls are the system calls that wait for the disk.
var quietCalls = []string{"fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync"}

// deniedCalls reach the host's kernel and not just the zone's part of it, and
// no package or service needs them. The capabilities of a zone would let some
// through: open_by_handle_at finds files outside of the root, CAP_SYS_BOOT, by
// which a zone's own init ends it, also covers loading another kernel.
var deniedCalls = []string{
	"acct", "bpf", "create_module", "delete_module", "finit_module", "init_module", "ioperm", "iopl", "kcmp",
	"kexec_file_load", "kexec_load", "lookup_dcookie", "nfsservctl", "open_by_handle_at", "perf_event_open",
	"quotactl", "quotactl_fd", "swapoff", "swapon", "uselib", "userfaultfd", "vm86", "vm86old",
}

func seccomp(quietSync bool) *specs.LinuxSeccomp {
	s := &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchAARCH64, specs.ArchARM},
		Syscalls:      []specs.LinuxSyscall{answer(syscall.EPERM, deniedCalls)},
	}
	if quietSync {
		s.Syscalls = append(s.Syscalls, answer(0, quietCalls))
	}
	return s
}

// answer has the kernel end the calls at once with errno; 0 is success.
func answer(errno syscall.Errno, calls []string) specs.LinuxSyscall {
	value := uint(errno)
	return specs.LinuxSyscall{Names: calls, Action: specs.ActErrno, ErrnoRet: &value}
}
