package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

func storage() []feature {
	return []feature{
		{"overlayfs", "sparse roots", "a kernel with CONFIG_OVERLAY_FS", true, kernelFileSystem("overlay")},
		{"btrfs", "pools with clones, snapshots and checksums", "a kernel with CONFIG_BTRFS_FS; else pools of backend dir", false, kernelFileSystem("btrfs")},
		{"mkfs.btrfs", "making btrfs pools", "install btrfs-progs", false, tool("mkfs.btrfs", "--version")},
		{"btrfs simple quotas", "exact use per zone", "a kernel from 6.7 on", false, simpleQuotas},
		{"ZFS", "ZFS pools", "install zfsutils-linux and zfs-dkms", false, zfs},
		{"loop devices", "pools in a file", "a kernel with CONFIG_BLK_DEV_LOOP", false, openable("dev/loop-control")},
		{"id-mapped mounts", "zones with user ids of their own", "a kernel from 5.12 on (tmpfs: 6.3)", false, tryIDMap},
	}
}

func openable(name string) func(context.Context, Options) (Status, string) {
	return func(_ context.Context, o Options) (Status, string) {
		f, err := os.Open(filepath.Join(o.Root, name))
		if err == nil {
			_ = f.Close()
		}
		return tried(err, "")
	}
}

// simpleQuotas asks btrfs itself where it is loaded, else the kernel's version.
func simpleQuotas(_ context.Context, o Options) (Status, string) {
	release, _ := o.read("proc/sys/kernel/osrelease")
	if o.exists("sys/fs/btrfs/features") {
		return present(o.exists("sys/fs/btrfs/features/simple_quota"), "kernel "+release)
	}
	return present(kernelFrom(release, 6, 7), "kernel "+release)
}

// kernelFrom reports whether a release is major.minor or later.
func kernelFrom(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || (a == major && b >= minor)
}

func zfs(_ context.Context, o Options) (Status, string) {
	version, err := o.read("sys/module/zfs/version")
	_, toolErr := o.Look("zpool")
	switch {
	case err == nil && toolErr == nil:
		return Present, version
	case err == nil:
		return Partial, "kernel module " + version + ", no program zpool"
	case toolErr == nil:
		return Partial, "program zpool, no kernel module"
	}
	return Missing, ""
}

func runtimes() []feature {
	return []feature{
		{"runc", "running zones", "install runc", true, tool("runc", "--version")},
		{"crun", "running zones, in place of runc", "install crun; on a hybrid host stay with runc", false, crun},
	}
}

// crun refuses hosts where cgroup2 is mounted beside v1 and has a controller.
func crun(ctx context.Context, o Options) (Status, string) {
	status, detail := tool("crun", "--version")(ctx, o)
	if layout, _ := o.controllers(); status == Present && layout == "hybrid" {
		return Partial, detail + ": refuses hybrid cgroups; runc is used"
	}
	return status, detail
}

func network() []feature {
	return []feature{
		{"veth and bridge", "the network of zones", "a kernel with CONFIG_VETH and CONFIG_BRIDGE", true, tryLinks},
		{"nftables", "masquerading, and zones kept from each other", "install nftables; a kernel with CONFIG_NF_TABLES", false, nft},
		{"IPv4 forwarding", "zones reaching other networks", "sysctl -w net.ipv4.ip_forward=1", false, sysctlAtLeast("net/ipv4/ip_forward", 1)},
	}
}

// nft asks the kernel through the tool, by a question that changes nothing.
func nft(ctx context.Context, o Options) (Status, string) {
	path, err := o.Look("nft")
	if err != nil {
		return Missing, "no program nft"
	}
	if _, err := o.version(ctx, path, "list", "tables"); err != nil {
		return Partial, err.Error()
	}
	version, err := o.version(ctx, path, "--version")
	return tried(err, version)
}

func images() []feature {
	return []feature{
		{"mmdebstrap", "building Debian images", "install mmdebstrap", false, tool("mmdebstrap", "--version")},
		{"package tools", "patching zones from the host's side", "install apt, dnf or apk-tools", false, anyTool("apt-get", "dnf", "apk")},
	}
}
