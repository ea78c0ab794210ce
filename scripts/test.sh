#!/bin/sh
# Install what the tests need, then run all of them.
#
#   scripts/test.sh [PYTEST-ARGUMENT...]     as root, on Debian 12+ or Ubuntu 22.04+
#
# NVHOOK_TEST_FORCE=0 skips what this machine can't do; by default that is a failure.
set -eu

# shellcheck source=scripts/setup.sh
. "$(dirname "$0")/setup.sh"
cd "$checkout"

need_root
apt_install runc crun busybox-static debootstrap golang-go shellcheck gcc clang libc6-dev musl-tools libcap-dev \
	python3-dev python3-venv libc-bin util-linux iproute2 patch strace docker.io containerd podman
apt_install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" # libFuzzer
# shellcheck disable=SC2034 # of make_venv
extras=kubelet
make_venv "${NVHOOK_VENV:-$checkout/.venv}" --group "$checkout/pyproject.toml:test" \
	--group "$checkout/pyproject.toml:lint"
bin=$venv/bin

step "shellcheck, ruff, mypy, import-linter"
find scripts oci tests .ci -name '*.sh' -exec shellcheck -x {} +
shellcheck -x .ci/run
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports"

step "tests"
export NVHOOK_TEST_FORCE="${NVHOOK_TEST_FORCE:-1}"
if [ "$#" -eq 0 ]; then
	# The kubelet takes minutes, which the first tests leave a core for.
	setsid nice "$bin/python" -m tests.prepare >/dev/null 2>&1 &
	prepare=$!
	trap 'kill -- "-$prepare" 2>/dev/null || :' EXIT
fi
"$bin/pytest" "$@"
