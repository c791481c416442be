#!/bin/sh
# Runs the tests of test/vm/guest, and those of packages that deal with the
# kernel, in a virtual machine with cgroup v2 and systemd: builds the machine if
# there is none yet, builds the program and the tests, boots, prints what the
# tests print, and ends as they end.
#
#   test/vm/run.sh [PATTERN]    only those tests of test/vm/guest
#
# ZONE_VM_CACHE    where the machine is kept (default /var/cache/zone-vm)
# ZONE_VM_TIMEOUT  seconds the machine may run (default 900)
# ZONE_VM_MEMORY   its memory in MiB (default 2048)
# ZONE_VM_CONSOLE  a file for all the machine prints
set -eu

here=$(dirname "$(readlink -f "$0")")
cache=${ZONE_VM_CACHE:-/var/cache/zone-vm}
seconds=${ZONE_VM_TIMEOUT:-900}
GO=${GO:-go}

say() { echo "vm: $*" >&2; }

machine=$("$here/build.sh")
exec 8>"$cache/run.lock"
flock 8 # one machine at a time: each wants all CPUs
rm -rf --one-file-system "$cache"/run-*/
work=$(mktemp -d "$cache/run-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP

# Packages whose own tests say something else on the machine's kernel.
packages="internal/cgroup internal/network internal/storage/btrfs"

# job [PATTERN]: what goes onto the machine's second disk.
job() {
	mkdir "$work/job"
	(
		cd "$here/../.."
		export CGO_ENABLED=0
		"$GO" build -trimpath -o "$work/job/zone" ./cmd/zone
		"$GO" test -c -trimpath -o "$work/job/guest.test" ./test/vm/guest
		[ $# = 0 ] || exit 0
		for p in $packages; do
			mkdir -p "$work/job/$p"
			"$GO" test -c -trimpath -o "$work/job/$p/package.test" "./$p"
			[ ! -d "$p/testdata" ] || cp -R "$p/testdata" "$work/job/$p/"
		done
	)
	script "$@" >"$work/job/job.sh"
	tar -C "$work/job" -cf "$work/job.tar" .
}

# script [PATTERN]: what the machine runs.
script() {
	cat <<-END
		modprobe loop # other modules have to come by themselves
		export ZONE_VM=1 ZONE_BINARY=/job/zone ZONE_VM_ROOTS=/zone-roots ZONE_TEST_SKIPS=/tmp/skips
		status=0
	END
	for p in $([ $# != 0 ] || echo "$packages"); do
		cat <<-END
			echo "=== $p, \$(cut -d. -f1 /proc/uptime) s after the start" && cd /job/$p
			ZONE_TEST_MUST=root,btrfs,loop,overlay,runc,cgroup2,network ./package.test -test.timeout=${seconds}s || status=1
		END
	done
	cat <<-END
		echo "=== test/vm/guest, \$(cut -d. -f1 /proc/uptime) s after the start" && cd /job
		ZONE_TEST_MUST=all ./guest.test -test.v -test.timeout=${seconds}s -test.run='${1:-.}' || status=1
		[ ! -e /tmp/skips ] || sed 's/^/skipped: /' /tmp/skips
		exit \$status
	END
}

emulator() {
	e=$machine/emulator
	if [ ! -d "$e" ]; then
		timeout -k 5 "$seconds" qemu-system-x86_64 "$@"
		return
	fi
	QEMU_MODULE_DIR=$e/usr/lib/x86_64-linux-gnu/qemu timeout -k 5 "$seconds" \
		"$e/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" \
		--library-path "$e/lib/x86_64-linux-gnu:$e/usr/lib/x86_64-linux-gnu" \
		"$e/usr/bin/qemu-system-x86_64" -L "$e/usr/share/qemu" -L "$e/usr/share/seabios" "$@"
}

# boot runs the machine. Nothing is written to its disks: what a run changes is
# in a file without a name below $work. The kernel finds its root without an
# initramfs, since it has NVMe and ext4 built in; one controller with two
# namespaces, because two controllers come up in any order.
boot() {
	TMPDIR=$work emulator -M q35 -accel tcg,thread=multi -cpu max -smp 2 -m "${ZONE_VM_MEMORY:-2048}" \
		-nodefaults -no-user-config -display none -monitor none -serial stdio -no-reboot \
		-kernel "$machine/vmlinuz" -device nvme,id=n0,serial=zone \
		-drive "if=none,id=r,file=$machine/root.img,format=raw,cache=unsafe,snapshot=on" -device nvme-ns,drive=r,bus=n0,nsid=1 \
		-drive "if=none,id=j,file=$work/job.tar,format=raw,cache=unsafe,snapshot=on" -device nvme-ns,drive=j,bus=n0,nsid=2 \
		-append "console=ttyS0 root=/dev/nvme0n1 rw quiet panic=-1 mitigations=off systemd.unified_cgroup_hierarchy=1 systemd.show_status=0" \
		</dev/null
}

job "$@"
console=${ZONE_VM_CONSOLE:-$work/console}
began=$(date +%s)
say "booting $machine"
{ boot || echo "VM-BROKE=$?"; } 2>&1 | sed -u 's/\r//g' | tee "$console" | grep --line-buffered -v '^VM-EXIT=' || :
code=$(sed -n 's/.*VM-EXIT=\([0-9]*\)$/\1/p' "$console" | tail -n 1)
passed=$(grep -c '^ *--- PASS' "$console" || :)
say "$(($(date +%s) - began)) s, $passed parts of the suite passed, exit code ${code:-none}"
if [ -z "$code" ]; then
	say "the machine ended without saying how the tests did; last of it:"
	tail -n 40 "$console" >&2
	exit 1
fi
[ "$code" = 0 ] && [ "$passed" -gt 0 ]
