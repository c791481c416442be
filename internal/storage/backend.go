package storage

import (
	"context"
	"time"

	"zone/internal/errdefs"
)

// Backend makes and opens pools of one kind. The registry calls it under the
// pool's lock, except for Opened.
type Backend interface {
	// Plan checks a specification, which names this backend, and fills in what
	// it leaves open. dir is where pools without a place of their own live.
	// It changes nothing.
	Plan(spec Spec, dir string) (Record, error)
	// Make makes the planned pool and leaves it open at the directory "at". After an
	// error the registry calls Close and Remove.
	Make(ctx context.Context, rec Record, at string) (Pool, error)
	// Opened returns the pool when it is open at "at" already. It starts no
	// program and waits for nothing.
	Opened(rec Record, at string) (Pool, bool)
	// Open mounts the pool at "at".
	Open(ctx context.Context, rec Record, at string) (Pool, error)
	// Close unmounts the pool; one that is not mounted is success. A pool in
	// use is errdefs.Busy, and stays mounted.
	Close(ctx context.Context, rec Record, at string) error
	// InUse returns errdefs.Busy when a closed pool is still in use elsewhere:
	// in another mount namespace.
	InUse(ctx context.Context, rec Record) error
	// Remove deletes what Make made. It must work on a pool half made or half
	// removed.
	Remove(ctx context.Context, rec Record) error
}

// Spec says which pool to make.
type Spec struct {
	Name        string
	Backend     string   // btrfs (also ""), or dir
	Size        int64    // bytes of the sparse file; 0: the smaller of 50 GiB and 80 % of what is free
	Devices     []string // block devices; none: a sparse file
	Mirror      bool     // keep everything on two devices
	Compression string   // off (also ""), zstd or gzip
	Path        string   // dir: where; "": below the registry's home
	NoQuota     bool     // leave simple quotas off even where the kernel has them
	Force       bool     // use devices that hold another file system
}

// Record is what the host keeps of a pool, in HOME/pools/NAME.json.
type Record struct {
	Schema      int       `json:"schema"`
	Name        string    `json:"name"`
	UUID        string    `json:"uuid"`
	Backend     string    `json:"backend"`
	State       string    `json:"state"`
	File        string    `json:"file,omitempty"`
	Size        int64     `json:"size,omitempty"`
	Devices     []string  `json:"devices,omitempty"`
	Mirror      bool      `json:"mirror,omitempty"`
	Compression string    `json:"compression"`
	Path        string    `json:"path,omitempty"`
	MadePath    bool      `json:"made_path,omitempty"` // the directory was made for the pool, and goes with it
	NoQuota     bool      `json:"no_quota,omitempty"`
	Force       bool      `json:"-"`
	Created     time.Time `json:"created"`
}

// Info returns what the record says. Abilities are unknown until the pool is
// open.
func (r Record) Info() Info {
	return Info{
		Name: r.Name, UUID: r.UUID, Backend: r.Backend, State: r.State, File: r.File, Devices: r.Devices,
		Path: r.Path, Mirror: r.Mirror, Compression: r.Compression, Created: r.Created,
	}
}

// Header is the file pool.json in the root of every pool: it tells what the
// directory or file system is.
type Header struct {
	Schema  int       `json:"schema"`
	Name    string    `json:"name"`
	UUID    string    `json:"uuid"`
	Backend string    `json:"backend"`
	Created time.Time `json:"created"`
}

// HeaderName is the name of the header's file.
const HeaderName = "pool.json"

// Header returns the header of the pool that the record is about.
func (r Record) Header() Header {
	return Header{Schema: 1, Name: r.Name, UUID: r.UUID, Backend: r.Backend, Created: r.Created}
}

// backend returns the backend that a specification or a record names.
func (r *Registry) backend(what, name string) (Backend, error) {
	if b, ok := r.Backends[name]; ok {
		return b, nil
	}
	if name == "zfs" {
		return nil, errdefs.New(errdefs.NotSupported, what,
			"zfs pools need a later release of zone, and a kernel with the zfs module").
			WithHint("use --backend btrfs or --backend dir")
	}
	return nil, errdefs.New(errdefs.Usage, what, "unknown backend %s; allowed: btrfs, dir", quote(name))
}
