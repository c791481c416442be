package config

// Pending returns what of a definition a zone that runs does not have yet:
// the keys read at boot whose values differ from those it was booted with.
// Old is what the running zone has, New what is defined, defaults included.
func Pending(running, defined Zone, name string) []Change {
	var pending []Change
	for _, c := range Diff(running.WithDefaults(name), defined.WithDefaults(name)) {
		if k, ok := lookup(c.Key); ok && k.NextBoot && !k.Fixed {
			pending = append(pending, c)
		}
	}
	return pending
}

// SplitLive parts changes into those that the kernel can make on a running
// zone and those that wait for its next boot.
func SplitLive(changes []Change) (live, waiting []Change) {
	for _, c := range changes {
		if k, ok := lookup(c.Key); ok && k.Live {
			live = append(live, c)
		} else {
			waiting = append(waiting, c)
		}
	}
	return live, waiting
}

// Take gives the keys of z that changes name the values that from has. A
// value that is from's default only is not written down in z.
func Take(z *Zone, from Zone, name string, changes []Change) error {
	for _, c := range changes {
		k, err := Lookup(c.Key)
		if err != nil {
			return err
		}
		value, isSet := k.get(&from)
		k.clear(z)
		if isSet && Effective(*z, name, c.Key) != value {
			if err := Set(z, c.Key, value); err != nil {
				return err
			}
		}
	}
	return nil
}
