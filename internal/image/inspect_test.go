package image

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"zone/internal/host"
)

// elf is the start of a program for the machine with the given number.
func elf(machine byte) string {
	return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 11) + string([]byte{machine, 0}) + "rest"
}

func openTree(t *testing.T, files map[string]string) *host.Root {
	t.Helper()
	dir := t.TempDir()
	makeTree(t, dir, files)
	r, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			files[name] = "->" + target
			return err
		}
		data, err := os.ReadFile(path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestInspect(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Image
	}{
		"debian with systemd": {
			map[string]string{
				"etc/os-release":      "->../usr/lib/os-release",
				"usr/lib/os-release":  "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n# x\n",
				"var/lib/dpkg/status": "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: deinstall ok config-files\n\nPackage: c\nStatus: hold ok installed",
				"bin":                 "->usr/bin", "sbin": "->usr/sbin", "lib": "->usr/lib",
				"usr/bin/sh": "->dash", "usr/bin/dash": elf(62),
				"usr/sbin/init": "->/lib/systemd/systemd", "usr/lib/systemd/systemd": elf(62),
			},
			Image{
				OS: OS{"debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"}, Arch: "amd64",
				PackageSystem: "apt", Packages: 2, Init: "/sbin/init",
			},
		},
		"systemd without sbin/init": {
			map[string]string{"lib/systemd/systemd": elf(183), "bin/sh": elf(183)},
			Image{Init: "/lib/systemd/systemd", Arch: "arm64"},
		},
		"init that leads out or nowhere": {
			map[string]string{"sbin/init": "->/../../../../../bin/true-not-here", "bin/sh": "#!x"},
			Image{},
		},
		"init that is not executable": {
			map[string]string{"sbin/init": "text", "lib/systemd/systemd/": ""},
			Image{},
		},
		"alpine": {
			map[string]string{
				"etc/os-release": "ID=alpine\nVERSION_ID=3.20.1\nPRETTY_NAME='Alpine \"Linux\"'\n", "lib/apk/db/installed": "P:musl\nV:1\n\nP:busybox\n",
				"bin/busybox": elf(62), "bin/sh": "->/bin/busybox", "sbin/init": "->/bin/busybox",
			},
			Image{
				OS: OS{"alpine", "3.20.1", "", `Alpine "Linux"`}, Arch: "amd64",
				PackageSystem: "apk", Packages: 2, Init: "/sbin/init",
			},
		},
		"rpm": {
			map[string]string{"usr/lib/sysimage/rpm/rpmdb.sqlite": "x"},
			Image{PackageSystem: "dnf"},
		},
		"nothing": {map[string]string{}, Image{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := inspect(openTree(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
		})
	}
}

// A pipe in the place of a file must not make the host wait.
func TestInspectPipe(t *testing.T) {
	r := openTree(t, map[string]string{"bin/": "", "var/lib/dpkg/": ""})
	for _, name := range []string{"bin/sh", "var/lib/dpkg/status"} {
		if err := unix.Mkfifo(filepath.Join(r.Name(), name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := inspect(r); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestResetIdentity(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := openTree(t, map[string]string{
		"etc/machine-id": "->" + outside, "etc/hostname": "web", "etc/resolv.conf": "->" + outside,
		"var/lib/dbus/machine-id": "0123", "var/lib/systemd/random-seed": "seed",
		"etc/ssh/ssh_host_rsa_key": "k", "etc/ssh/ssh_host_rsa_key.pub": "k", "etc/ssh/ssh_config": "keep",
		"var/lib/apt/lists/x_Packages": "p", "var/lib/apt/lists/partial/y": "p", "var/lib/apt/lists/lock": "",
		"var/cache/apt/archives/a.deb": "d", "var/cache/apt/archives/lock": "", "var/cache/apt/pkgcache.bin": "c",
	})
	if err := resetIdentity(r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"etc/machine-id": "", "etc/ssh/ssh_config": "keep",
		"var/lib/apt/lists/lock": "", "var/cache/apt/archives/lock": "",
	}
	if diff := cmp.Diff(want, readTree(t, r.Name())); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if data, _ := os.ReadFile(outside); string(data) != "untouched" {
		t.Errorf("file outside is now %q", data)
	}
}

func TestResetIdentityKeepsLink(t *testing.T) {
	r := openTree(t, map[string]string{"etc/": "", "var/lib/dbus/machine-id": "->/etc/machine-id"})
	if err := resetIdentity(r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"etc/machine-id": "", "var/lib/dbus/machine-id": "->/etc/machine-id"}
	if diff := cmp.Diff(want, readTree(t, r.Name())); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func TestSizeOfCountsHardLinksOnce(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{"a": "12345", "d/b": "123", "l": "->a"})
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "d/a")); err != nil {
		t.Fatal(err)
	}
	if got, err := sizeOf(dir); err != nil || got != 8 {
		t.Errorf("size %d, %v", got, err)
	}
}
