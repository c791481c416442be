// Package config defines what a zone is to be: the keys of zone.toml in the
// vocabulary of zonecfg, how they are read, checked, written and compared. It
// knows nothing of hosts or pools and touches no file: whether this host can
// give what a zone asks for is checked by the packages that give it. All
// functions are pure and safe to call from any goroutine.
package config

import "time"

// The kinds of root.
const (
	RootSparse = "sparse" // a shared image below, the zone's own changes above
	RootWhole  = "whole"  // the zone's own copy-on-write copy
)

// The kinds of network.
const (
	IPExclusive = "exclusive" // a network namespace with its own link and address
	IPNone      = "none"      // a network namespace with the loopback only
)

// What is killed when a zone's memory does not suffice.
const (
	OOMProcess = "process" // the process that the kernel picks
	OOMZone    = "zone"    // all processes of the zone
)

// DefaultCPUShares is the weight of a zone that sets no cpu-shares.
const DefaultCPUShares = 100

// defaultShutdownTimeout is how long a zone's own shutdown may take.
const defaultShutdownTimeout = Duration(30 * time.Second)

// Zone is the definition of one zone. The zero value of a field means "not
// set"; WithDefaults fills in what then holds.
type Zone struct {
	Root            string            `toml:"root,omitempty" json:"root,omitempty"`
	Autoboot        bool              `toml:"autoboot,omitempty" json:"autoboot,omitempty"`
	Hostname        string            `toml:"hostname,omitempty" json:"hostname,omitempty"`
	Description     string            `toml:"description,omitempty" json:"description,omitempty"`
	CPUShares       int               `toml:"cpu-shares,omitempty" json:"cpu-shares,omitempty"`
	MaxLWPs         int               `toml:"max-lwps,omitempty" json:"max-lwps,omitempty"`
	MaxShmMemory    Size              `toml:"max-shm-memory,omitempty" json:"max-shm-memory,omitempty"`
	MaxShmIDs       int               `toml:"max-shm-ids,omitempty" json:"max-shm-ids,omitempty"`
	MaxSemIDs       int               `toml:"max-sem-ids,omitempty" json:"max-sem-ids,omitempty"`
	MaxMsgIDs       int               `toml:"max-msg-ids,omitempty" json:"max-msg-ids,omitempty"`
	LimitPriv       string            `toml:"limitpriv,omitempty" json:"limitpriv,omitempty"`
	HostID          string            `toml:"hostid,omitempty" json:"hostid,omitempty"`
	ShutdownTimeout Duration          `toml:"shutdown-timeout,omitempty" json:"shutdown-timeout,omitempty"`
	CappedCPU       CappedCPU         `toml:"capped-cpu,omitempty" json:"capped-cpu,omitzero"`
	CappedMemory    CappedMemory      `toml:"capped-memory,omitempty" json:"capped-memory,omitzero"`
	Net             Net               `toml:"net,omitempty" json:"net,omitzero"`
	FS              []FS              `toml:"fs,omitempty" json:"fs,omitempty"`
	Device          []Device          `toml:"device,omitempty" json:"device,omitempty"`
	Attr            map[string]string `toml:"attr,omitempty" json:"attr,omitempty"`
}

// CappedCPU limits how much CPU time the zone may use.
type CappedCPU struct {
	NCPUs float64 `toml:"ncpus,omitempty" json:"ncpus,omitempty"` // in CPUs: 0.5 is half of one
}

// CappedMemory limits the zone's memory.
type CappedMemory struct {
	Physical Size `toml:"physical,omitempty" json:"physical,omitempty"`
	// Swap is the swap space the zone may use on top of Physical. It is a
	// pointer because 0, no swap at all, is not the same as no limit.
	Swap *Size `toml:"swap,omitempty" json:"swap,omitempty"`
	// Locked is what each process may keep from being swapped.
	Locked Size `toml:"locked,omitempty" json:"locked,omitempty"`
	// OOM says what ends when Physical does not suffice.
	OOM string `toml:"oom,omitempty" json:"oom,omitempty"`
}

// Net says what network the zone gets.
type Net struct {
	IPType string `toml:"ip-type,omitempty" json:"ip-type,omitempty"`
}

// WithDefaults returns z with every unset key that has a default filled in,
// for the zone called name. Keys whose absence means "no limit" stay unset,
// and so does cpu-shares (see DefaultCPUShares).
func (z Zone) WithDefaults(name string) Zone {
	if z.Root == "" {
		z.Root = RootSparse
	}
	if z.Hostname == "" {
		z.Hostname = name
	}
	if z.ShutdownTimeout == 0 {
		z.ShutdownTimeout = defaultShutdownTimeout
	}
	if z.LimitPriv == "" {
		z.LimitPriv = "default"
	}
	if z.CappedMemory.OOM == "" {
		z.CappedMemory.OOM = OOMProcess
	}
	if z.Net.IPType == "" {
		z.Net.IPType = IPExclusive
	}
	return z
}
