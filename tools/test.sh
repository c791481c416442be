#!/bin/bash
# Runs the tests of the packages and, as root, those under test/. Ends with
# what was skipped and why, so that a skip cannot hide.
#
#   tools/test.sh [unit|root|all]
set -euo pipefail

part=${1:-all}
GO=${GO:-go}
ZONE_TEST_SKIPS=$(mktemp)
export ZONE_TEST_SKIPS
trap 'rm -f "$ZONE_TEST_SKIPS"' EXIT
began=$SECONDS
failed=0

if [ "$part" != root ]; then
	echo "== tests of the packages"
	together=()
	# Packages that mount would see each other's mounts.
	if [ "$(id -u)" = 0 ]; then together=(-p 1); fi
	mapfile -t packages < <("$GO" list ./... | grep -v '/test/')
	"$GO" test -count=1 -timeout 10m "${together[@]}" "${packages[@]}" || failed=1
fi
if [ "$part" != unit ]; then
	if [ "$(id -u)" = 0 ]; then
		echo "== tests of the whole, on this machine"
		"$GO" test -count=1 -timeout 14m -p 1 ./test/... || failed=1
	elif [ "$part" = root ]; then
		echo "test-root: needs root's rights; try: sudo make test-root" >&2
		exit 1
	else
		printf 'all of ./test/...\tneeds root\n' >>"$ZONE_TEST_SKIPS"
	fi
fi

count=$(wc -l <"$ZONE_TEST_SKIPS")
echo "== $((SECONDS - began)) s, $count skipped"
cut -f 2- "$ZONE_TEST_SKIPS" | sort | uniq -c | sort -rn
if [ "$failed" != 0 ]; then
	echo "== some tests failed" >&2
	exit 1
fi
