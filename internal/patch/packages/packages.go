// Package packages drives the package manager of a zone: what is pending, what
// has to be fetched, how it is installed without the network, and whether the
// result is what was planned. One Driver stands for one package system; apt is
// the first.
//
// The work runs inside the zone, through the functions of Zone. Lists and
// package files are fetched once, kept by the caller on the host, and seen by
// every zone read-only below Shared; a zone's own lists and caches are never
// touched. A Driver holds no state and may be used from several goroutines.
package packages

import (
	"context"
	"io"
	"time"

	"zone/internal/host"
)

// Shared is where a zone sees its shared directory, read-only. The caller puts
// the lists at Shared/lists and the package files at Shared/archives, under the
// names that File.Name gives.
const Shared = "/run/host/zone"

// Zone is what a driver may touch of a zone.
type Zone struct {
	// Root is the zone's files.
	Root *host.Root
	// Exec runs a program in the zone, as host.Runner does: a command that ends
	// with another exit code than 0 is an error.
	Exec func(ctx context.Context, c host.Cmd) (host.Result, error)
	// Log gets what the programs say. May be nil.
	Log io.Writer
}

// Options narrows what is pending.
type Options struct {
	SecurityOnly bool     `json:"security_only,omitempty"`
	Exclude      []string `json:"exclude,omitempty"` // package names or globs
}

// Change is one package that a plan changes. Old is empty for a new package.
type Change struct {
	Name string `json:"name"` // with ":arch" when it is not the native one
	Old  string `json:"old"`
	New  string `json:"new"`
}

// File is one package file to fetch.
type File struct {
	URI    string `json:"uri"`
	Name   string `json:"name"` // a plain file name
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Plan is what one zone's package manager wants to do.
type Plan struct {
	Changes  []Change `json:"changes"`
	Files    []File   `json:"files"`
	KeptBack []string `json:"kept_back,omitempty"`
	// Removed names packages that the transaction would remove. Callers refuse
	// such a plan.
	Removed []string `json:"removed,omitempty"`
	// Verb is the package manager's own verb and arguments for the plan.
	Verb []string `json:"verb"`
	// Preferences is put in the place of the zone's own pinning for the run;
	// empty leaves it alone.
	Preferences string `json:"preferences,omitempty"`
	// State is the digest of the package database and settings that the plan
	// was made from.
	State string `json:"state"`
}

// Driver is one package system.
type Driver interface {
	// Name is how the report calls it: "apt".
	Name() string
	// Detect says whether the root is managed by this package system.
	Detect(root *host.Root) bool
	// Sources returns a digest of all that decides which lists a refresh gives:
	// zones with equal digests share lists.
	Sources(root *host.Root) (string, error)
	// State returns the digest that Plan.State carries.
	State(root *host.Root) (string, error)
	// Ready fails when the package database is in the middle of something.
	Ready(ctx context.Context, z Zone) error
	// Lock takes the package database's lock from the host, waiting up to the
	// given time; errdefs.Busy when another program has it. While it is held no
	// package manager but Apply's can change the zone.
	Lock(ctx context.Context, root *host.Root, wait time.Duration) (unlock func(), err error)
	// Refresh fetches the lists in the zone, which needs the network, and copies
	// them to dest, a new directory of the host. It returns the bytes that were
	// fetched, as the package manager counts them.
	Refresh(ctx context.Context, z Zone, dest string) (int64, error)
	// Index adds to dest what makes Solve cheaper in the other zones. The zone
	// sees dest's content at Shared/lists already.
	Index(ctx context.Context, z Zone, dest string) error
	// Solve returns what is pending, from the lists at Shared/lists.
	Solve(ctx context.Context, z Zone, opt Options) (Plan, error)
	// Fetch gets files in the zone, which needs the network, and gives each to
	// keep, in any order. Size and hash are the caller's to check.
	Fetch(ctx context.Context, z Zone, files []File, keep func(File, io.Reader) error) error
	// Apply carries the plan out with nothing but Shared/archives. With quiet
	// set no service is started or restarted. The caller holds Lock.
	Apply(ctx context.Context, z Zone, p Plan, quiet bool) error
	// Verify compares the zone with the plan: the database is whole and every
	// package has its planned version.
	Verify(ctx context.Context, z Zone, p Plan) error
	// Clean removes what the other methods left in a zone that goes on running.
	Clean(ctx context.Context, z Zone) error
}

// Find returns the first driver that knows the root, or nil.
func Find(drivers []Driver, root *host.Root) Driver {
	for _, d := range drivers {
		if d.Detect(root) {
			return d
		}
	}
	return nil
}
