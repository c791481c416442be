// Package storage keeps datasets in pools. A dataset is a directory tree that
// can be snapshot, cloned and deleted as one; a pool is where datasets live: a
// btrfs file system or a plain directory. Drivers are the packages below this
// one; all of them pass the suite in storagetest.
//
// Pools are mounted only in the private mount namespace (see
// host.EnterPrivateMounts), and the callers run inside it.
package storage

import (
	"context"
	"time"
)

// Pool is an imported pool. Datasets are named by a clean relative path such
// as "zones/web1/active"; the driver makes missing parent directories. Datasets
// never nest. All methods may be called from several goroutines at once; calls
// on the same dataset are the caller's to order.
type Pool interface {
	Info() Info
	// Path returns where the dataset's files are.
	Path(dataset string) string
	// Create makes an empty dataset. One that exists is fs.ErrExist.
	Create(ctx context.Context, dataset string) error
	// Snapshot makes "to" a copy of "from" at one moment, sharing its blocks
	// where Info().Can.Clone says so. Works while "from" is written to.
	Snapshot(ctx context.Context, from, to string, readOnly bool) error
	// SetReadOnly makes a dataset immutable, or writable again. Backends
	// without the ability (Info().Can.Immutable is false) do nothing.
	SetReadOnly(ctx context.Context, dataset string, readOnly bool) error
	// Delete removes a dataset, read-only or not. One that is gone already is
	// success.
	Delete(ctx context.Context, dataset string) error
	// Rename moves a dataset, read-only or not, to a name that is free; one
	// that is taken is fs.ErrExist.
	Rename(ctx context.Context, from, to string) error
	// Used returns the bytes written to this dataset and still held by it, as
	// of the last Sync. A pool that cannot tell is errdefs.NotSupported.
	Used(ctx context.Context, dataset string) (int64, error)
	// Created returns when the dataset was made: for a snapshot, when it was
	// taken.
	Created(ctx context.Context, dataset string) (time.Time, error)
	// Space returns the pool's size and what is free, in bytes.
	Space(ctx context.Context) (Space, error)
	// Sync puts everything written so far on disk.
	Sync(ctx context.Context) error
}

// Space is the size of a pool in bytes.
type Space struct {
	Size, Used, Free int64
}

// The states of a pool.
const (
	Ready       = "ready"
	Creating    = "creating"    // being made, or its making was interrupted
	Destroying  = "destroying"  // being removed, or its removal was interrupted
	Unavailable = "unavailable" // its file, device or directory cannot be used
)

// Info describes a pool.
type Info struct {
	Name        string    `json:"name"`
	State       string    `json:"state"`
	Problem     string    `json:"problem,omitempty"` // why it is not ready, and what helps
	UUID        string    `json:"uuid"`
	Backend     string    `json:"backend"`           // btrfs or dir
	Path        string    `json:"path"`              // its root, inside the private mount namespace
	File        string    `json:"file,omitempty"`    // the sparse file behind it
	Devices     []string  `json:"devices,omitempty"` // the block devices behind it
	Mirror      bool      `json:"mirror"`            // everything is on two devices
	DirectIO    bool      `json:"direct_io"`         // the file behind it is not cached a second time
	Compression string    `json:"compression"`       // off, zstd or gzip
	Created     time.Time `json:"created"`
	Can         Abilities `json:"can"`
}

// Abilities is what a pool can do, found by trying and not by name.
type Abilities struct {
	Clone     bool `json:"clone"`     // snapshots share blocks and take no time by size
	Immutable bool `json:"immutable"` // read-only datasets are held so by the kernel
	Checksums bool `json:"checksums"` // silent corruption is found on reading
	Reflink   bool `json:"reflink"`   // a copy of a file can share its blocks
	Quota     bool `json:"quota"`     // simple quotas: Used is exact and free of cost
}
