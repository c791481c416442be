package patch

import (
	"context"
	"time"

	"zone/internal/host"
)

// The states of a zone that patching acts on. Any other state keeps a zone out
// of a run.
const (
	stateRunning   = "running"
	stateInstalled = "installed" // whole and halted
	stateMounted   = "mounted"   // halted, with its files and a place for programs
)

// Zones is what patching needs of the zones. All methods may be called from
// several goroutines at once, for different zones. An unknown zone is
// errdefs.NotFound.
//
// Except State, Lock, SharedDir and Store, the methods are called with the
// zone's lock held by this process and must not take it again.
type Zones interface {
	// State returns the zone's present state, asked of the kernel.
	State(ctx context.Context, name string) (string, error)
	// Lock takes the zone's lock for an operation that others are told of
	// ("patch 20260102-150405-ab"). When it is still taken after a while:
	// errdefs.Busy.
	Lock(ctx context.Context, name, op string) (unlock func(), err error)

	// Snapshot keeps the zone's root as it is now as NAME@snap. The zone may
	// be running or mounted.
	Snapshot(ctx context.Context, name, snap string) error
	// HasSnapshot says whether NAME@snap is there, whole.
	HasSnapshot(ctx context.Context, name, snap string) (bool, error)
	// DeleteSnapshot removes NAME@snap. One that is gone may be success or
	// errdefs.NotFound.
	DeleteSnapshot(ctx context.Context, name, snap string) error
	// RollbackTo makes the zone's root what it was at NAME@snap; the zone is
	// installed, neither running nor mounted. The replaced root becomes
	// NAME@keepAs, which appears only when the new root is in place: after a
	// crash, a keepAs that is there means that the rollback was made.
	RollbackTo(ctx context.Context, name, snap, keepAs string) error

	// Boot starts an installed zone and returns when its first process runs.
	Boot(ctx context.Context, name string) error
	// Halt ends a running zone at once. One that does not run is success.
	Halt(ctx context.Context, name string) error
	// Shutdown lets a running zone end by itself, and halts it when it does
	// not within its deadline. One that does not run is success.
	Shutdown(ctx context.Context, name string) error

	// Mount takes an installed zone to the state mounted: its root, its
	// limits, an empty /run and no service of its own; programs come in by
	// Exec. Without network it has a loopback at most; with network, what it
	// has when it runs. With quietSync, fsync and its kin do nothing in it.
	Mount(ctx context.Context, name string, quietSync, network bool) error
	// Unmount ends all programs in a mounted zone and takes it back to
	// installed. After quietSync everything written is on disk when it
	// returns. A zone that is not mounted is success.
	Unmount(ctx context.Context, name string) error

	// Exec runs a program in a running or mounted zone, inside its cgroup, as
	// host.Runner.Run does: an exit code other than 0 is an error, output goes
	// to c.Stdout and c.Stderr or is kept in the result. c.Env is the whole
	// environment; c.Dir empty means "/". When ctx ends, the program and what it
	// started are killed and the call returns.
	Exec(ctx context.Context, name string, c host.Cmd) (host.Result, error)
	// Root opens the files of a running or mounted zone as its programs see
	// them (through /proc/PID/root: /run is its tmpfs). The caller closes it.
	Root(ctx context.Context, name string) (*host.Root, error)
	// CPU reads the counters of a running or mounted zone's cgroup.
	CPU(ctx context.Context, name string) (CPU, error)

	// SharedDir returns the host's directory (mode 0755, owned by root) that
	// the zone sees read-only at packages.Shared while running or mounted.
	SharedDir(ctx context.Context, name string) (string, error)
	// Store returns the directory for package files in the same file system
	// and dataset as SharedDir(name), so that hard links between them work. It
	// is one and the same for all zones of a pool.
	Store(ctx context.Context, name string) (string, error)
}

// CPU holds growing counters of a zone's cgroup.
type CPU = struct {
	Used      time.Duration // CPU time of all its processes
	Waited    time.Duration // time in which some process of it waited for a CPU (PSI "some")
	Throttled time.Duration // the part of Waited that its own cap caused
	HasWaited bool          // false: the host does not tell Waited
}
