#!/bin/sh
# Check nvhook against this machine's NVIDIA driver; pack.sh made this folder, README.md explains it.
#
#   ./check.sh [--driver-config FILE]
#
# FILE: an nvhook configuration, to check against a simulated driver (nvhook sim create) or a driver
# that is not below /. One JSON report on standard output, progress on standard error.
# Exit status: 0 all checks ok, 1 one failed, 2 usage, 3 none failed but some could not run here,
# 130 interrupted. NVHOOK_CHECK_PYTHON names another interpreter.
set -eu

LIBRARIES=/run/nvhook-gpu-check # the same path as in pack.sh
here=$(cd "$(dirname "$0")" && pwd)
work=
child=

say() { echo "check.sh: $*" >&2; }

# For what fails before there is a Python to write the report. Neither word may have quotes.
refuse() { # CHECK SEEN
	say "$2"
	printf '{"ok": false, "counts": {"ok": 0, "failed": 1, "not run": 0}, "checks": '
	printf '[{"name": "%s", "status": "failed", "seen": "%s"}]}\n' "$1" "$2"
	exit 1
}

# Also after a failure or a signal: containers, links, nvhook's remembered configuration, files.
# shellcheck disable=SC2317 # called by trap
cleanup() {
	trap '' INT TERM HUP
	if [ -n "$child" ]; then
		kill -TERM "$child" 2>/dev/null || :
		wait "$child" || :
	fi
	[ -n "$work" ] || return 0
	if [ "$(readlink "$LIBRARIES" || :)" = "$work/lib" ]; then
		for name in $("$work/bin/runc" --root "$work/runc" list --quiet 2>/dev/null); do
			"$work/bin/runc" --root "$work/runc" delete --force "$name" || :
		done
		rm -f "$LIBRARIES"
	fi
	if [ -e "$work/nvhook.toml" ]; then
		rm -f "/run/nvhook/config-$("$here/bin/busybox" stat -c '%d-%i' "$work/nvhook.toml").json"
		[ -e "$work/had-state" ] || rmdir /run/nvhook 2>/dev/null || :
	fi
	rm -rf "$work"
}

# A directory where programs may be started: /tmp is noexec on some machines.
make_work() {
	for parent in "${TMPDIR:-/tmp}" /var/tmp /root "$here"; do
		work=$(mktemp -d "$parent/nvhook-gpu-check.XXXXXX" 2>/dev/null) || continue
		mkdir "$work/bin" "$work/lib"
		cp "$here"/bin/* "$work/bin/"
		cp "$here"/lib/* "$work/lib/"
		chmod 755 "$work" "$work"/bin/* "$work"/lib/*
		if "$work/bin/busybox" true 2>/dev/null; then
			return 0
		fi
		rm -rf "$work"
		work=
	done
	refuse folder "no directory where programs can be started (noexec, or another architecture)"
}

# runc's loader is looked for below $LIBRARIES; the link is also what keeps two checks apart.
claim_link() {
	mkdir -p /run
	if [ -L "$LIBRARIES" ] && [ ! -d "$LIBRARIES" ]; then
		rm -f "$LIBRARIES" # of a check that was killed
	fi
	[ ! -e "$LIBRARIES" ] || refuse lock "$LIBRARIES exists: another check runs, or it is to be removed"
	ln -s "$work/lib" "$LIBRARIES" || refuse lock "$LIBRARIES can not be made"
}

# The first interpreter that wheels were packed for; not a virtual environment's copy of it.
find_python() {
	for name in ${NVHOOK_CHECK_PYTHON:-python3 /usr/bin/python3 python3.14 python3.13 python3.12 \
		python3.11 python3.10}; do
		found=$(command -v "$name") || continue
		version=$("$found" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])') || continue
		if [ -e "$here/wheels/$version.list" ]; then
			python=$("$found" -I -c 'import os, sys; print(os.path.realpath(sys.executable))')
			return 0
		fi
	done
	refuse python "no python3 on this machine that wheels were packed for"
}

# Without pip, which the machine may lack, and laid out as nvhook/_native/launcher.c looks for it.
install() {
	site="$work/nvhook"
	mkdir -p "$site/bin"
	while read -r wheel; do
		"$python" -I -m zipfile -e "$here/wheels/$wheel" "$site"
	done <"$here/wheels/$version.list"
	for data in "$site"/nvhook-*.data; do
		mv "$data"/scripts/* "$site/bin/"
		for part in platlib purelib; do
			[ ! -d "$data/$part" ] || cp -R "$data/$part/." "$site/"
		done
	done
	chmod 755 "$site"/bin/*
	ln -s "$python" "$site/bin/python3"
	"$python" -I -m compileall -q "$site" >&2 || :
}

# nvhook's state and log go to the work directory, whatever the configuration says.
configure() { # FILE or nothing
	if [ -n "$1" ]; then
		grep -v -E '^[[:space:]]*(state-directory|log-path)[[:space:]]*=' "$1" >"$work/nvhook.toml" || :
	fi
	printf 'state-directory = "%s/state"\nlog-path = "%s/nvhook.log"\n' "$work" "$work" \
		>>"$work/nvhook.toml"
	[ ! -d /run/nvhook ] || : >"$work/had-state"
}

driver_config=
case $# in
0) ;;
2)
	[ "$1" = --driver-config ] || { say "usage: check.sh [--driver-config FILE]"; exit 2; }
	driver_config=$2
	[ -r "$driver_config" ] || { say "$driver_config can't be read"; exit 2; }
	;;
*) say "usage: check.sh [--driver-config FILE]"; exit 2 ;;
esac

umask 022
[ "$(id -u)" = 0 ] || refuse root "it has to run as root: it makes containers and device nodes"
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
find_python
say "Python $version at $python"
make_work
claim_link
install
configure "$driver_config"
mkdir -p "$work/root"
"$work/bin/busybox" tar -x -f "$here/root.tar" -C "$work/root"

# In the background, so that a signal gets here at once; the shell then ends it (see cleanup).
"$python" -E -s -B "$here/check.py" "$work" </dev/null &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"
