package zone

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"strings"

	"zone/internal/config"
)

// writtenHeader marks files that zone keeps up to date until somebody removes
// the line.
const writtenHeader = "# written by zone"

// resetIdentity gives a new zone its own name and machine id and takes away
// what its source was known by: ssh host keys, the seed of random numbers,
// leases.
func resetIdentity(w *writable, r Record, z config.Zone) error {
	name := z.WithDefaults(r.Name).Hostname
	id := strings.ReplaceAll(r.UUID, "-", "") + "\n"
	err := errors.Join(
		w.writeFile("/etc/machine-id", []byte(id), 0o444),
		w.writeFile("/etc/hostname", []byte(name+"\n"), 0o644),
		w.remove("/var/lib/systemd/random-seed"),
	)
	for _, dir := range []string{"/etc/ssh", "/var/lib/dhcp", "/var/lib/dbus"} {
		for _, f := range w.list(dir) {
			if namesMachine(dir, f) {
				err = errors.Join(err, w.remove(path.Join(dir, f)))
			}
		}
	}
	if err != nil {
		return err
	}
	return writeHosts(w, name)
}

func namesMachine(dir, file string) bool {
	switch dir {
	case "/etc/ssh":
		return strings.HasPrefix(file, "ssh_host_") && strings.Contains(file, "_key")
	case "/var/lib/dhcp":
		return strings.HasSuffix(file, ".leases")
	}
	return file == "machine-id" // dbus's own copy; usually a link to /etc/machine-id, then made anew
}

func writeHosts(w *writable, name string) error {
	old, err := w.readFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil // a link or a directory: somebody's own arrangement
	}
	if err == nil && len(bytes.TrimSpace(old)) > 0 && !bytes.HasPrefix(old, []byte(writtenHeader)) {
		return nil
	}
	return w.writeFile("/etc/hosts", hostsFile(name), 0o644)
}

func hostsFile(name string) []byte {
	return []byte(writtenHeader + "; remove this line to keep your own\n" +
		"127.0.0.1\tlocalhost\n127.0.1.1\t" + name + "\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n")
}
