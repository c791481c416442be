package config

import "slices"

// Validate checks a whole definition: every value on its own, then what keys
// ask of each other. All problems come at once, as an error of kind Usage.
func Validate(z Zone) error { return validate(z).err() }

func validate(z Zone) Problems {
	var all Problems
	for _, k := range SetKeys(z) {
		text, _ := k.get(&z)
		scratch := Zone{}
		if why := k.set(&scratch, text); why != "" {
			all = append(all, Problem{Key: shown(k.Name), Text: why})
		}
	}
	return append(all, conflicts(z)...)
}

// conflicts checks what one key needs from another.
func conflicts(z Zone) Problems {
	var all Problems
	if z.CappedMemory.Swap != nil && z.CappedMemory.Physical == 0 {
		all = append(all, Problem{
			Key:  "capped-memory.swap",
			Text: "needs capped-memory.physical: swap is allowed on top of a memory cap",
			with: "capped-memory.physical",
		})
	}
	if z.CappedMemory.OOM == OOMZone && z.CappedMemory.Physical == 0 {
		all = append(all, Problem{
			Key:  "capped-memory.oom",
			Text: "needs capped-memory.physical: without a cap a zone never runs out of its own memory",
			with: "capped-memory.physical",
		})
	}
	if z.CappedMemory.Locked > 0 && slices.Contains(z.Capabilities(), "CAP_IPC_LOCK") {
		all = append(all, Problem{
			Key:  "capped-memory.locked",
			Text: "limits nothing beside limitpriv with +ipc_lock, which locks memory without limit",
			with: "limitpriv",
		})
	}
	return all
}

// unreported validates z, leaving out what told problems already explain.
func unreported(z Zone, told Problems) Problems {
	var left Problems
	for _, p := range validate(z) {
		if !told.mentions(p.Key) && (p.with == "" || !told.mentions(p.with)) {
			left = append(left, p)
		}
	}
	return left
}
