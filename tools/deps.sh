#!/bin/bash
# Installs with apt-get what zone and its tests need and this machine lacks,
# and says what. Does nothing when all is there.
set -euo pipefail

# program (or file) -> Debian package that brings it
needs=(
	runc=runc                  # runs the zones
	mkfs.btrfs=btrfs-progs     # makes pools
	mmdebstrap=mmdebstrap      # builds Debian images
	nft=nftables               # lets zones reach other networks
	catatonit=catatonit        # first process of images that have no init
	ip=iproute2                # used by tests of the network
	ps=procps                  # used by tests that look for left processes
	curl=curl                  # asks the zones' web servers in the demonstration
	nsenter=util-linux         # used by tests, to look into the private mounts
	/etc/ssl/certs/ca-certificates.crt=ca-certificates # Go fetches modules over https
)

die() {
	printf 'deps: %s\n' "$*" >&2
	exit 1
}

# sudo may drop these from PATH.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin

there() { case $1 in /*) [ -e "$1" ] ;; *) command -v "$1" >/dev/null ;; esac }

# newer_go finds the release of Debian's archives, among those this machine
# uses, whose Go is new enough to fetch the toolchain that go.mod asks for.
newer_go() {
	local version suite found=
	while IFS='| ' read -r _ version _ suite _; do
		if [ -z "$found" ] && dpkg --compare-versions "${version#*:}" ge 1.21; then found=${suite%%/*}; fi
	done < <(apt-cache madison golang-go)
	echo "$found"
}

check_go() {
	local version
	version=$(go env GOVERSION)
	version=${version#go}
	dpkg --compare-versions "${version%% *}" ge 1.21 ||
		die "go $version is too old; 1.26 is needed, or 1.21 and later, which fetch it themselves (see https://go.dev/doc/install)"
}

missing=()
for need in "${needs[@]}"; do
	there "${need%%=*}" || missing+=("${need#*=}")
done

no_go=
there go || no_go=1
if [ -z "$no_go" ]; then check_go; fi
if [ ${#missing[@]} = 0 ] && [ -z "$no_go" ]; then exit 0; fi

if [ "$(id -u)" != 0 ]; then
	[ ${#missing[@]} = 0 ] || echo "deps: not installed: ${missing[*]}; as root, make deps installs them" >&2
	[ -z "$no_go" ] || die "there is no go; as root, make deps looks for one, or see https://go.dev/doc/install"
	exit 0
fi
command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${missing[*]} ${no_go:+and Go 1.26}"

apt-get -q=2 update
if [ ${#missing[@]} != 0 ]; then
	echo "deps: installing ${missing[*]}"
	DEBIAN_FRONTEND=noninteractive apt-get -q=2 install -y --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ -n "$no_go" ]; then
	suite=$(newer_go)
	[ -n "$suite" ] || die "this machine's package sources have no Go of 1.21 or later (Debian 12 itself has 1.19).
Either enable the backports of your Debian release and run make deps again, or
install Go 1.26 as told at https://go.dev/doc/install"
	echo "deps: installing golang-go from $suite"
	DEBIAN_FRONTEND=noninteractive apt-get -q=2 install -y --no-install-recommends -t "$suite" golang-go >/dev/null
	check_go
fi
for need in "${needs[@]}"; do
	there "${need%%=*}" || die "${need#*=} is installed, but there is no ${need%%=*}"
done
