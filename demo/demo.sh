#!/bin/bash
# Builds, boots, watches, patches and rolls back eight real Debian zones.
# Each claim is checked; the first wrong answer ends the demonstration.
#
#   ZONE=bin/zone demo/demo.sh        what `make demo` runs, as root
#
# State goes where zone keeps it: $ZONE_HOME, by default /var/lib/zone. All
# that is made is called demo, demo-NNN or debian-demo.
set -euo pipefail

zone=$(realpath "${ZONE:-bin/zone}")
image=debian-demo
clones=8
packages=nginx,openssl,curl,perl,python3,ca-certificates,procps
watched=openssl # the package whose version is followed

began=$SECONDS
step=0

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

say() { printf '\n%s== %d. %s%s  (%d s)\n' "$bold" "$((++step))" "$*" "$plain" "$((SECONDS - began))"; }
run() {
	printf '$ zone'
	printf ' %q' "$@"
	printf '\n'
	"$zone" "$@"
}
die() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}
quiet() { "$zone" "$@" >/dev/null 2>&1; }
inside() { "$zone" exec "$1" -- "${@:2}"; }
address() { "$zone" list "$1" --columns address | tail -n 1; }
version_in() { inside "$1" dpkg-query -W -f '${Version}' "$watched"; }

zones=()
for i in $(seq -f %03g "$clones"); do zones+=("demo-$i"); done

check_free() {
	[ "$(id -u)" = 0 ] || die "zones need root's rights; try: sudo make demo"
	left=$("$zone" list -c -q | grep -E '^demo(-[0-9]+)?$' || true)
	[ -z "$left" ] || die "zones of an earlier demonstration are here; try: $zone delete -F demo 'demo-*'"
}

build_image() {
	say "An image: Debian without updates, so that real patches are pending"
	if quiet image show "$image"; then
		echo "$image is here already"
	else
		run image build "$image" --from debian:bookworm --suite-only --include "$packages"
	fi
}

make_zones() {
	say "One zone from it, and $clones clones that share its disk blocks and memory"
	run create demo --image "$image"
	run clone demo demo --count "$clones"
	[ "$("$zone" list -c -q 'demo-*' | wc -l)" = "$clones" ] || die "not all clones are listed"
}

set_caps() {
	say "Different caps for each"
	local n=0
	for z in "${zones[@]}"; do
		n=$((n + 1))
		run config set "$z" "capped-cpu=$((n % 2 + 1))" "cpu-shares=$((n * 50))" \
			"capped-memory=$((256 + n * 32))M" "max-lwps=$((200 + n * 10))"
	done
}

boot_zones() {
	say "All boot at once, and nginx is started in each"
	run boot "${zones[@]}"
	for z in "${zones[@]}"; do inside "$z" service nginx start >/dev/null; done
	run list 'demo-*'
	[ "$("$zone" list -q 'demo-*' | wc -l)" = "$clones" ] || die "not all zones are listed"
}

ask_web() {
	for z in "${zones[@]}"; do
		curl -fsS --noproxy '*' --max-time 10 "http://$(address "$z")/" | grep -qi nginx || die "nginx of $z does not answer"
	done
	echo "nginx answers in all $clones zones, asked from the host"
}

watch_zones() {
	say "Use beside caps and shares"
	run stat -z 'demo-*'
	ask_web
}

patch_zones() {
	say "All are patched at once, each inside its own caps"
	old=$(version_in demo-003)
	echo "$watched in demo-003 before: $old"
	# Zones of others on this host are none of the demonstration's business.
	local which=(demo "${zones[@]}")
	if ! "$zone" list -c -q | grep -qvE '^demo(-[0-9]+)?$'; then which=(--all); fi
	run patch "${which[@]}" --jobs auto
	report=$("$zone" patch list -q | tail -n 1)
	new=$(version_in demo-003)
	echo "$watched in demo-003 after: $new"
	[ "$new" != "$old" ] || die "$watched was not patched in demo-003"
}

verify_patched() {
	say "The package manager inside each zone finds nothing left to patch"
	for z in "${zones[@]}"; do
		inside "$z" apt-get -q=2 update >/dev/null || die "apt-get update fails in $z"
		local pending
		pending=$(inside "$z" apt-get -s dist-upgrade | grep -c '^Inst ' || true)
		[ "$pending" = 0 ] || die "$z has $pending packages left to patch"
		[ -z "$(inside "$z" dpkg --audit)" ] || die "dpkg finds half-installed packages in $z"
		echo "$z: 0 packages pending, $watched $(version_in "$z")"
	done
	ask_web
}

roll_back() {
	say "One zone is rolled back"
	run patch rollback "$report" demo-003
	local now
	now=$(version_in demo-003)
	[ "$now" = "$old" ] || die "$watched in demo-003 is $now, not $old"
	[ "$(version_in demo-004)" = "$new" ] || die "demo-004 was rolled back too"
	echo "$watched is $now in demo-003 again, and still $new in demo-004"
	inside demo-003 service nginx start >/dev/null # a rollback boots the zone anew
	ask_web
}

farewell() {
	say "Done"
	cat <<END
The zones are still there. To look at them:
  $zone list -v 'demo*'
  $zone login demo-001
  $zone stat 2
  $zone patch show $report
To remove them, their image and, if it holds nothing else, the pool:
  $zone delete -F demo 'demo-*'
  $zone image delete $image
  $zone pool destroy tank -F
END
}

check_free
build_image
make_zones
set_caps
boot_zones
watch_zones
patch_zones
verify_patched
roll_back
farewell
