package config

import (
	"fmt"
	"strings"
	"time"
)

// Key describes one key of a zone's definition.
type Key struct {
	Name     string `json:"name"` // "capped-cpu.ncpus"; "attr.NAME" stands for any name
	Type     string `json:"type"` // one of the Type constants
	Default  string `json:"default"`
	Allowed  string `json:"allowed"`
	Doc      string `json:"doc"`
	Live     bool   `json:"live"`      // can be applied to a running zone
	NextBoot bool   `json:"next_boot"` // read when the zone boots; a change waits for that or for being applied
	Fixed    bool   `json:"fixed"`     // chosen when the zone is created and kept

	aliases []string
	fields  []entryField // of the entries, when Type is TypeList
	get     func(*Zone) (string, bool)
	set     func(*Zone, string) string // why the value is refused, or ""
	clear   func(*Zone)
}

// The types of keys.
const (
	TypeBool     = "bool"
	TypeInt      = "integer"
	TypeNumber   = "number"
	TypeSize     = "size"
	TypeDuration = "duration"
	TypeChoice   = "choice"
	TypeString   = "string"
	TypeList     = "list"
)

// attrPrefix starts the keys whose second half the user chooses.
const attrPrefix = "attr."

// Limits that are not the kernel's to say.
const (
	minMemory = Size(4 << 20) // below this not even a small init starts
	maxCPUs   = 8192          // more than any kernel is built for
	maxLWPs   = 1 << 22       // the kernel's own limit of thread ids
	maxIPC    = 1 << 15       // the kernel's own limit of System V identifiers
	minShm    = Size(4096)    // the smallest page
)

// Keys returns every key in the order in which it is shown and rendered.
// A new key is one entry here and one field of Zone.
func Keys() []Key {
	keys := globalKeys()
	keys = append(keys, resourceKeys()...)
	return append(keys, attrKey("NAME"))
}

func globalKeys() []Key {
	return []Key{
		choiceKey(Key{
			Name: "root", Default: RootSparse, Fixed: true, NextBoot: true,
			Doc: "Whether the root shares an image and keeps only changes (sparse) or is a copy of its own (whole).",
		}, func(z *Zone) *string { return &z.Root }, RootSparse, RootWhole),
		boolKey(Key{
			Name: "autoboot", Default: "false",
			Doc: "Boot the zone when the host starts.",
		}, func(z *Zone) *bool { return &z.Autoboot }),
		textKey(Key{
			Name: "hostname", Default: "the zone's name", Allowed: "a host name of at most 64 characters", NextBoot: true,
			Doc: "The name the zone gives itself.",
		}, func(z *Zone) *string { return &z.Hostname }, validHostname),
		textKey(Key{
			Name: "description", Allowed: textAllowed,
			Doc: "Free text about the zone.",
		}, func(z *Zone) *string { return &z.Description }, validText),
		intKey(Key{
			Name: "cpu-shares", Default: fmt.Sprint(DefaultCPUShares), Live: true, NextBoot: true,
			Doc: "Weight of the zone against its neighbours when CPUs are scarce.",
		}, func(z *Zone) *int { return &z.CPUShares }, 1, 10000),
		intKey(Key{
			Name: "max-lwps", Live: true, NextBoot: true,
			Doc: "Most threads the zone may have at once, counted over all its processes.",
		}, func(z *Zone) *int { return &z.MaxLWPs }, 1, maxLWPs),
		sizeKey(Key{
			Name: "max-shm-memory", NextBoot: true,
			Doc: "System V shared memory the zone may have, all segments together; counted in whole pages.",
		}, func(z *Zone) *Size { return &z.MaxShmMemory }, minShm),
		intKey(Key{
			Name: "max-shm-ids", NextBoot: true,
			Doc: "Most System V shared memory segments of the zone.",
		}, func(z *Zone) *int { return &z.MaxShmIDs }, 1, maxIPC),
		intKey(Key{
			Name: "max-sem-ids", NextBoot: true,
			Doc: "Most System V semaphore sets of the zone.",
		}, func(z *Zone) *int { return &z.MaxSemIDs }, 1, maxIPC),
		intKey(Key{
			Name: "max-msg-ids", NextBoot: true,
			Doc: "Most System V message queues of the zone.",
		}, func(z *Zone) *int { return &z.MaxMsgIDs }, 1, maxIPC),
		textKey(Key{
			Name: "limitpriv", Default: "default", Allowed: privAllowed, NextBoot: true,
			Doc: "The most privileges that processes of the zone can have: the default set, with capabilities added and taken away.",
		}, func(z *Zone) *string { return &z.LimitPriv }, func(s string) string {
			_, why := capabilities(s)
			return why
		}),
		textKey(Key{
			Name: "hostid", Allowed: "up to 8 hexadecimal digits, such as 1a2b3c4d", NextBoot: true,
			Doc: "The number that gethostid and the command hostid tell in the zone.",
		}, func(z *Zone) *string { return &z.HostID }, validHostID),
		durationKey(Key{
			Name: "shutdown-timeout", Default: defaultShutdownTimeout.String(), Live: true, NextBoot: true,
			Doc: "How long the zone's own shutdown may take before the zone is halted.",
		}, func(z *Zone) *Duration { return &z.ShutdownTimeout }, Duration(time.Second), Duration(24*time.Hour)),
	}
}

func resourceKeys() []Key {
	return []Key{
		numberKey(Key{
			Name: "capped-cpu.ncpus", aliases: []string{"capped-cpu"}, Live: true, NextBoot: true,
			Doc: "CPU time the zone may use, in CPUs; 0.5 is half of one.",
		}, func(z *Zone) *float64 { return &z.CappedCPU.NCPUs }, 0.01, maxCPUs),
		sizeKey(Key{
			Name: "capped-memory.physical", aliases: []string{"capped-memory"}, Live: true, NextBoot: true,
			Doc: "Memory the zone may use, its page cache included.",
		}, func(z *Zone) *Size { return &z.CappedMemory.Physical }, minMemory),
		swapKey(),
		sizeKey(Key{
			Name: "capped-memory.locked", NextBoot: true,
			Doc: "Memory that each process of the zone may lock, at most as much as the host lets its own processes lock.",
		}, func(z *Zone) *Size { return &z.CappedMemory.Locked }, 4096),
		choiceKey(Key{
			Name: "capped-memory.oom", Default: OOMProcess, NextBoot: true,
			Doc: "What is killed when capped-memory.physical does not suffice: one process, or all of the zone (cgroup v2 only).",
		}, func(z *Zone) *string { return &z.CappedMemory.OOM }, OOMProcess, OOMZone),
		choiceKey(Key{
			Name: "net.ip-type", aliases: []string{"ip-type"}, Default: IPExclusive, NextBoot: true,
			Doc: "Whether the zone has a network stack with its own address (exclusive) or only a loopback (none).",
		}, func(z *Zone) *string { return &z.Net.IPType }, IPExclusive, IPNone),
		listKey(Key{
			Name: "fs", NextBoot: true,
			Allowed: "entries of dir, special, type (lofs) and options (ro, which is the default, or rw), such as dir=/srv special=/data",
			Doc:     "Directories of the host (special) that the zone sees (dir), with all that is mounted below them; in TOML tables [[fs]].",
		}, func(z *Zone) *[]FS { return &z.FS }, fsFields()),
		listKey(Key{
			Name: "device", NextBoot: true,
			Allowed: "entries of match, a path or shell pattern below /dev, such as match=/dev/net/tun",
			Doc:     "Devices of the host that the zone may use; patterns are looked up when the zone boots; in TOML tables [[device]].",
		}, func(z *Zone) *[]Device { return &z.Device }, deviceFields()),
	}
}

// lookup finds a key by its name or one of its short forms.
func lookup(name string) (Key, bool) {
	if attr, ok := strings.CutPrefix(name, attrPrefix); ok {
		return attrKey(attr), true
	}
	for _, k := range Keys() {
		if k.Name == name {
			return k, true
		}
		for _, a := range k.aliases {
			if a == name {
				return k, true
			}
		}
	}
	return Key{}, false
}

// unknown says that there is no such key, and which was probably meant.
func unknown(name string) string {
	var names []string
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	near := Nearest(name, names)
	for _, n := range names { // "memory" is capped-memory before all others
		if resource, _, ok := strings.Cut(n, "."); ok && strings.HasSuffix(resource, "-"+name) {
			near = n
			break
		}
	}
	if near == "" { // "ncpus" and "phsical" come near the last part only
		var parts []string
		byPart := map[string]string{}
		for _, n := range names {
			part := n[strings.LastIndexByte(n, '.')+1:]
			parts, byPart[part] = append(parts, part), n
		}
		near = byPart[Nearest(name[strings.LastIndexByte(name, '.')+1:], parts)]
	}
	if near != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", near)
	}
	return "unknown key; known keys: " + strings.Join(names, ", ")
}
