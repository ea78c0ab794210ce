#!/bin/sh
# See nvhook work on a machine without a GPU: a real container gets GPU 1 of four, and nothing else.
#
#   scripts/demo.sh     as root, on Debian 12+ or Ubuntu 22.04+
#
# Installs what is missing, builds nvhook, makes a simulated four-GPU driver, runs a real runc container
# through the hook, and shows what the container saw. Ends with 0 if all of it was right.
set -eu

# shellcheck source=scripts/setup.sh
. "$(dirname "$0")/setup.sh"
cd "$checkout"

need_root
apt_install runc busybox-static debootstrap gcc libc6-dev musl-tools libcap-dev python3-dev python3-venv
make_venv "${NVHOOK_VENV:-$checkout/.venv}"
nvhook=$venv/bin/nvhook

work=$(mktemp -d "${TMPDIR:-/tmp}/nvhook-demo.XXXXXX")
name=nvhook-demo-$$
cleanup() {
	runc delete --force "$name" >/dev/null 2>&1 || true
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

step "a simulated driver with four GPUs"
config=$("$nvhook" sim create "$work/sim" --gpus 4)
"$nvhook" list --config "$config"

cache=${NVHOOK_TEST_CACHE:-/var/cache/nvhook-tests}
step "a Debian root for the container (made once, kept in $cache)"
mkdir -p "$cache"
root=$(scripts/debian-root.sh "$cache/debian-root")
mkdir "$work/bundle"
cp -a "$root" "$work/bundle/rootfs"

step "a bundle that asks for GPU 1, with the hook in its config.json"
sed -e "s|@NVHOOK@|$nvhook|; s|@CONFIG@|$config|" scripts/demo-config.json >"$work/bundle/config.json"
grep -e NVIDIA_ -e '"hook"' "$work/bundle/config.json" | sed 's/^ */    /'

step "runc run"
cat /proc/self/mountinfo >"$work/mounts-before"
if ! runc run --bundle "$work/bundle" "$name" </dev/null >"$work/output" 2>&1; then
	cat "$work/output" >&2
	fail "the container did not start" "the lines above say why; the hook's log is $work/sim/nvhook.log"
fi
cat /proc/self/mountinfo >"$work/mounts-after"
sed 's/^/    /' "$work/output"

step "was that right?"
wrong=0
check() { # check WHAT COMMAND...
	what=$1
	shift
	if "$@"; then
		printf '  %s\342\234\223%s %s\n' "$green" "$plain" "$what"
	else
		printf '  %s\342\234\227%s %s\n' "$red" "$plain" "$what"
		wrong=1
	fi
}
saw() { grep -q -e "$1" "$work/output"; }
gpu1=$("$nvhook" list --config "$config" --json | sed -n 's/.*"uuid": "\([^"]*\)".*/\1/p' | sed -n 2p)
one_gpu() { [ "$(grep -c '^GPU [0-9]' "$work/output")" -eq 1 ] && saw "^GPU 0: .*$gpu1"; }
absent() { ! saw '^/dev/nvidia[023]$'; }
same_mounts() { cmp -s "$work/mounts-before" "$work/mounts-after"; }
check "the container lists exactly GPU 1, $gpu1" one_gpu
check "/dev/nvidia1 is there and may be opened (no driver answers on this machine)" \
	saw '/dev/nvidia1: No such device or address'
check "/dev/nvidia0, 2 and 3 are absent" absent
check "made by hand with mknod, /dev/nvidia0 stays closed: Operation not permitted" \
	saw '/dev/nvidia0: Operation not permitted'
check "the container's loader finds libcuda.so.1" saw 'libcuda.so.1 (libc6'
check "the host's mount table is what it was" same_mounts
[ "$wrong" -eq 0 ] || fail "something above is wrong" "please report it with this output"
