# shellcheck shell=sh
# What demo.sh and test.sh share: installing what is missing, and the virtual environment.
# Sourced by the scripts beside it, not run.

checkout=$(cd "$(dirname "$0")/.." && pwd)

# shellcheck disable=SC2034 # the sourcing script's colours
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$(printf '\033[1m') green=$(printf '\033[32m') red=$(printf '\033[31m') plain=$(printf '\033[0m')
else
	bold='' green='' red='' plain=''
fi

step() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }

fail() {
	printf '%s: %s (hint: %s)\n' "${0##*/}" "$1" "$2" >&2
	exit 1
}

need_root() {
	[ "$(id -u)" -eq 0 ] || fail "needs root: it starts containers" "sudo $0"
	command -v apt-get >/dev/null || fail "needs apt-get" "Debian 12, Ubuntu 22.04 or newer"
}

# apt_install PACKAGE...: install those that are missing.
apt_install() {
	missing=''
	for package in "$@"; do
		dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
			missing="$missing $package"
	done
	if [ -z "$missing" ]; then
		step "Debian packages: all there"
		return
	fi
	step "Debian packages: installing$missing"
	log=$(mktemp)
	keep_services_stopped
	# shellcheck disable=SC2086 # a list of names
	if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
		tail -n 15 "$log" >&2
		fail "apt-get could not install$missing" "$log has everything"
	fi
	rm -f "$log" "$policy"
}

# Packages of engines start their daemons, unless this program says no. Who has one keeps it.
# Source: invoke-rc.d(8), status 101.
keep_services_stopped() {
	policy=''
	[ ! -e /usr/sbin/policy-rc.d ] || return 0
	policy=/usr/sbin/policy-rc.d
	trap 'rm -f "$policy"' EXIT
	trap 'exit 130' INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
}

# make_venv DIR PIP-ARGUMENT...: a virtual environment with this checkout installed; the extras
# (comma between them) that are wanted stand in $extras.
make_venv() {
	venv=$1
	shift
	step "Python environment: $venv"
	[ -x "$venv/bin/pip" ] || "${PYTHON:-/usr/bin/python3}" -m venv "$venv"
	"$venv/bin/pip" install --quiet --upgrade pip
	step "building and installing nvhook"
	"$venv/bin/pip" install --quiet "$@" "$checkout${extras:+[$extras]}"
}
