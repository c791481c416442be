package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/host"
)

// identityFiles belong to one machine and never to an image. The zone gets
// its own at boot.
var identityFiles = []string{
	"/etc/hostname",
	"/etc/resolv.conf", // as a symbolic link too
	"/var/lib/systemd/random-seed",
	"/var/lib/urandom/random-seed",
	"/var/lib/systemd/credential.secret",
}

// leftovers are directories and which of their files an image does not need.
var leftovers = []struct {
	dir    string
	remove func(name string) bool
}{
	{"/etc/ssh", func(n string) bool { return strings.HasPrefix(n, "ssh_host_") && strings.Contains(n, "_key") }},
	{"/var/lib/apt/lists", func(n string) bool { return n != "lock" }},
	{"/var/lib/apt/lists/partial", func(string) bool { return true }},
	{"/var/cache/apt/archives", func(n string) bool { return strings.HasSuffix(n, ".deb") }},
	{"/var/cache/apt/archives/partial", func(string) bool { return true }},
	{"/var/cache/apt", func(n string) bool { return strings.HasSuffix(n, ".bin") }},
}

// resetIdentity removes what would make two zones of one image the same
// machine, and fetched package files.
func resetIdentity(r *host.Root) error {
	for _, name := range identityFiles {
		if err := r.Remove(name); err != nil {
			return err
		}
	}
	for _, l := range leftovers {
		if err := removeFiles(r, l.dir, l.remove); err != nil {
			return err
		}
	}
	return resetMachineID(r)
}

// resetMachineID leaves an empty file: init systems fill it at first boot,
// and it can be mounted over where the root is read-only.
func resetMachineID(r *host.Root) error {
	if err := r.WriteFile("/etc/machine-id", nil, 0o444); err != nil {
		return err
	}
	const dbus = "/var/lib/dbus/machine-id"
	link, err := isSymlink(r, dbus)
	if errors.Is(err, fs.ErrNotExist) || link {
		return nil
	}
	if err != nil {
		return err
	}
	return r.Remove(dbus)
}

// removeFiles removes what want chooses in dir, but no directories.
func removeFiles(r *host.Root, dir string, want func(string) bool) error {
	entries, err := r.ReadDir(dir)
	if errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() || !want(e.Name()) {
			continue
		}
		if err := r.Remove(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func isSymlink(r *host.Root, name string) (bool, error) {
	f, err := r.Open(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	return st.Mode()&fs.ModeSymlink != 0, nil
}
