#!/bin/sh
# Make a minimal Debian or Ubuntu root directory of this machine's own release, once.
#
#   scripts/debian-root.sh DIR     prints DIR when it is there
#
# The mirror is the one this machine's apt uses. Built beside DIR and renamed when complete.
set -eu

directory=${1:?usage: debian-root.sh DIR}
if [ -e "$directory/etc/debian_version" ]; then
	echo "$directory"
	exit 0
fi
command -v debootstrap >/dev/null || {
	echo "debian-root.sh: debootstrap is missing (hint: apt-get install debootstrap)" >&2
	exit 1
}
# shellcheck disable=SC1091 # what the machine is
. /etc/os-release
# shellcheck disable=SC2016 # apt's own placeholder, not the shell's
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
[ -n "$mirror" ] || {
	echo "debian-root.sh: apt knows no mirror (hint: apt-get update)" >&2
	exit 1
}
work="$directory.partial"
rm -rf "$work"
mkdir -p "$work"
if ! debootstrap --variant=minbase "$VERSION_CODENAME" "$work" "$mirror" >"$work.log" 2>&1; then
	tail -n 5 "$work.log" >&2
	echo "debian-root.sh: debootstrap failed (hint: $work.log has everything)" >&2
	exit 1
fi
rm -f "$work.log"
mv -T "$work" "$directory"
echo "$directory"
