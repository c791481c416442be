package image

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// checkRoot refuses a tree that is no root file system.
func checkRoot(r *host.Root, source Source) error {
	if etc, err := r.Open("/etc", unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		_ = etc.Close()
		for _, program := range []string{"/bin/sh", "/usr/bin/sh", "/sbin/init"} {
			if executable(r, program) {
				return nil
			}
		}
	}
	err := errdefs.New(errdefs.Failed, "build from "+source.String(),
		"no root file system: it needs the directory etc/ and one of bin/sh, usr/bin/sh, sbin/init at its top")
	if source.Kind == SourceTar {
		return err.WithHint("pack one with: tar -C DIRECTORY --numeric-owner --xattrs -cf FILE .")
	}
	return err
}

// inspect finds out what a root file system is. What cannot be told stays
// empty; only failing reads are errors.
func inspect(r *host.Root) (Image, error) {
	var img Image
	var err error
	if img.OS, err = readOS(r); err != nil {
		return Image{}, err
	}
	if img.PackageSystem, img.Packages, err = countPackages(r); err != nil {
		return Image{}, err
	}
	img.Arch = machine(r)
	for _, program := range []string{"/sbin/init", "/lib/systemd/systemd", "/usr/lib/systemd/systemd"} {
		if executable(r, program) {
			img.Init = program
			break
		}
	}
	return img, nil
}

func readOS(r *host.Root) (OS, error) {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := r.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return OS{}, err
		}
		return parseOSRelease(string(data)), nil
	}
	return OS{}, nil
}

func parseOSRelease(text string) OS {
	var o OS
	fields := map[string]*string{
		"ID": &o.ID, "VERSION_ID": &o.VersionID, "VERSION_CODENAME": &o.Codename, "PRETTY_NAME": &o.PrettyName,
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if field, ok := fields[key]; ok {
			*field = unquote(value)
		}
	}
	return o
}

// unquote takes the shell quotes off a value of os-release.
func unquote(s string) string {
	if len(s) < 2 || (s[0] != '"' && s[0] != '\'') || s[len(s)-1] != s[0] {
		return s
	}
	if s[0] == '\'' {
		return s[1 : len(s)-1]
	}
	return strings.NewReplacer(`\"`, `"`, `\$`, `$`, `\\`, `\`, "\\`", "`").Replace(s[1 : len(s)-1])
}

// packageDatabases are where package systems keep what is installed, and the
// lines that stand for one package each. Databases of rpm are not text.
var packageDatabases = []struct {
	system, file string
	counts       func(line string) bool
}{
	{"apt", "/var/lib/dpkg/status", func(l string) bool {
		return strings.HasPrefix(l, "Status: ") && strings.HasSuffix(l, " installed")
	}},
	{"apk", "/lib/apk/db/installed", func(l string) bool { return strings.HasPrefix(l, "P:") }},
	{"apk", "/usr/lib/apk/db/installed", func(l string) bool { return strings.HasPrefix(l, "P:") }},
	{"dnf", "/usr/lib/sysimage/rpm/rpmdb.sqlite", nil},
	{"dnf", "/var/lib/rpm/rpmdb.sqlite", nil},
	{"dnf", "/var/lib/rpm/Packages", nil},
}

func countPackages(r *host.Root) (system string, n int, err error) {
	for _, db := range packageDatabases {
		if db.counts == nil {
			if r.Exists(db.file) {
				return db.system, 0, nil
			}
			continue
		}
		n, err := countLines(r, db.file, db.counts)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return db.system, n, err
	}
	return "", 0, nil
}

func countLines(r *host.Root, name string, counts func(string) bool) (int, error) {
	f, err := openRegular(r, name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0
	lines := bufio.NewReader(io.LimitReader(f, 256<<20))
	for {
		line, err := lines.ReadString('\n')
		if counts(strings.TrimSuffix(line, "\n")) {
			n++
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// openRegular opens a file for reading; devices and pipes, which could make
// the host wait or act, are refused.
func openRegular(r *host.Root, name string) (*os.File, error) {
	f, err := r.Open(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	return r.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
}

// executable reports whether name leads, inside the root, to a regular file
// that may be executed.
func executable(r *host.Root, name string) bool {
	f, err := r.Open(name, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// machine returns the architecture of the root's programs, from the ELF
// header of its shell or init; "" when it cannot be told.
func machine(r *host.Root) string {
	for _, name := range []string{"/bin/sh", "/usr/bin/sh", "/sbin/init"} {
		f, err := openRegular(r, name)
		if err != nil {
			continue
		}
		var head [20]byte
		_, err = io.ReadFull(f, head[:])
		_ = f.Close()
		if err == nil && string(head[:4]) == "\x7fELF" {
			return archOf(head)
		}
	}
	return ""
}

func archOf(head [20]byte) string {
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	switch order.Uint16(head[18:]) {
	case 3:
		return "386"
	case 20, 21:
		if order == binary.LittleEndian {
			return "ppc64le"
		}
		return "ppc64"
	case 22:
		return "s390x"
	case 40:
		return "arm"
	case 62:
		return "amd64"
	case 183:
		return "arm64"
	case 243:
		return "riscv64"
	case 258:
		return "loong64"
	}
	return ""
}

// sizeOf returns the bytes of all regular files below dir, hard links once.
// It follows no symbolic links. Nothing else may write below dir.
func sizeOf(dir string) (int64, error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	var size int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			if id := (inode{st.Dev, st.Ino}); seen[id] {
				return nil
			} else {
				seen[id] = true
			}
		}
		size += info.Size()
		return nil
	})
	return size, err
}
