#!/bin/sh
# Builds the virtual machine of `make test-vm` from Debian's packages, once:
# a kernel, a root disk with systemd and roots for zones, and an emulator where
# this host has none. All of it is kept in $ZONE_VM_CACHE. Prints the directory
# it is in. Needs root, mmdebstrap and a Debian mirror.
set -eu

here=$(dirname "$(readlink -f "$0")")
cache=${ZONE_VM_CACHE:-/var/cache/zone-vm}
suite=bookworm

say() { echo "vm: $*" >&2; }
die() { say "$*"; exit 1; }

# wanted NAME: the packages on that line of the list, comma-separated.
wanted() { sed -n "s/^$1: *//p" "$here/packages" | tr -s ' ' ,; }

# sources: the lines under which this host's apt knows the suite. None make
# mmdebstrap use its own.
sources() {
	apt-get indextargets --format '$(CODENAME)|$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
		sed -n "s/^$suite[a-z-]*|Debian|\(deb https\{0,1\}:.* main\)\$/\1/p"
}

kernel_version() { apt-cache show --no-all-versions "$(wanted kernel)" 2>/dev/null | sed -n 's/^Version: //p'; }

# strap OUTPUT VARIANT PACKAGES: a root of Debian without documentation.
strap() {
	set -- --quiet --mode=root --variant="$2" ${3:+"--include=$3"} \
		--aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' "$suite" "$1"
	if [ -s "$work/sources" ]; then set -- "$@" "$work/sources"; fi
	mmdebstrap "$@" >&2 || die "mmdebstrap $* failed"
}

# tools: the kernel and, where the host lacks it, the emulator: unpacked only.
tools() {
	packages=$(wanted kernel)
	have_emulator || packages=$packages,$(wanted emulator)
	strap "$work/unpacked" extract "$packages"
	mv "$work"/unpacked/boot/vmlinuz-* "$work/vmlinuz"
	have_emulator || {
		mkdir "$work/emulator"
		(cd "$work/unpacked" && cp -a --parents lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu \
			usr/bin/qemu-system-x86_64 usr/share/qemu usr/share/seabios sbin/mke2fs etc/mke2fs.conf "$work/emulator")
	}
}

have_emulator() { command -v qemu-system-x86_64 >/dev/null && command -v mke2fs >/dev/null; }

mke2fs_() {
	if have_emulator; then mke2fs "$@"; return; fi
	e=$work/emulator
	"$e/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$e/lib/x86_64-linux-gnu:$e/usr/lib/x86_64-linux-gnu" "$e/sbin/mke2fs" "$@"
}

# furnish: turns a plain Debian into the machine.
furnish() {
	root=$work/root
	mkdir -p "$root/lib/modules" "$root/zone-roots" "$root/job"
	cp -a "$work"/unpacked/lib/modules/* "$root/lib/modules/"
	version=$(ls "$root/lib/modules")
	for drivers in "$root/lib/modules/$version"/kernel/drivers/*; do
		case ${drivers##*/} in block | net | md | virtio) ;; *) rm -rf "$drivers" ;; esac
	done
	chroot "$root" depmod "$version"
	: >"$root/etc/fstab"
	echo zone-vm >"$root/etc/hostname"
	echo 5a6f6e6500000000000000000000cafe >"$root/etc/machine-id"
	units=$root/etc/systemd/system
	sed '/^#/d' "$here/masked-units" | while read -r unit; do ln -sf /dev/null "$units/$unit"; done
	ln -sf /lib/systemd/system/multi-user.target "$units/default.target"
	cp "$here/job.service" "$units/"
	mkdir -p "$units/multi-user.target.wants"
	ln -sf ../job.service "$units/multi-user.target.wants/"
	mv "$work/base.tar" "$work/systemd.tar" "$root/zone-roots/"
	mke2fs_ -q -F -t ext4 -E root_owner=0:0 -d "$root" "$work/root.img" 8G
}

build() {
	command -v mmdebstrap >/dev/null || die "this host has no mmdebstrap: apt-get install mmdebstrap"
	say "building in $dir (kernel $(kernel_version))"
	sources >"$work/sources"
	trap wait EXIT # should one part fail, the other is not left alone
	strap "$work/root" minbase "$(wanted vm)" &
	vm=$!
	tools
	strap "$work/base.tar" minbase "$(wanted zone-base)"
	strap "$work/systemd.tar" essential "$(wanted zone-systemd)"
	wait "$vm"
	furnish
	rm -rf --one-file-system "$work/root" "$work/unpacked" "$work/sources"
	mv "$work" "$dir"
}

[ "$(id -u)" = 0 ] || die "needs root"
# Whatever is mounted while roots are made ends with this process.
[ "${1-}" = --alone ] || exec unshare --mount --propagation private "$0" --alone
umask 022
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
key=$({ cat "$here/packages" "$here/build.sh" "$here/job.service" "$here/masked-units"; kernel_version; have_emulator && echo own; } | sha256sum | cut -c1-16)
dir=$cache/machine-$key
if [ ! -e "$dir/root.img" ]; then
	rm -rf --one-file-system "$cache"/*.unfinished
	work=$dir.unfinished
	mkdir "$work"
	build >&2 # standard output is for the answer
	for old in "$cache"/machine-*/; do [ "$old" = "$dir/" ] || rm -rf --one-file-system "$old"; done
fi
echo "$dir"
