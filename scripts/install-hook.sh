#!/bin/sh
# Install nvhook for this host's container runtimes, or remove it: install-hook.sh --help
#
# Everything of its own lies in PREFIX/lib/nvhook, which is made beside the old one and exchanged with
# it in one step: a container that starts meanwhile finds either the old hook or the new one.
set -eu
umask 022
export LC_ALL=C

usage() {
	cat <<'EOF'
usage: install-hook.sh [options]

Install nvhook from the checkout this script stands in, or from a wheel.

  --prefix DIR      where to install (default /usr/local): DIR/lib/nvhook, DIR/bin/nvhook and
                    DIR/bin/nvhook-runtime
  --hooks-dir DIR   for podman and CRI-O (default /usr/share/containers/oci/hooks.d)
  --compat          also install NVIDIA's names: nvidia-container-runtime-hook (docker --gpus),
                    nvidia-container-runtime (--runtime=nvidia), nvidia-container-cli (ctr --gpus)
  --wheel FILE      install this wheel instead of building the checkout
  --find-links DIR  take wheels of the dependencies (and of pip) from this directory
  --no-index        never use the network
  --python PYTHON   the interpreter to run on, 3.10 or newer (default: the system's)
  --root DIR        put everything below DIR, for packages and images
  --dry-run         say what would be done, and change nothing
  --uninstall       remove what was installed; files that you changed stay
  --help            show this

Exit status: 0 done or nothing to do, 1 failed, 2 usage.
EOF
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
prefix=/usr/local root='' wheel='' find_links='' python='' hooks_dir=/usr/share/containers/oci/hooks.d
no_index=no dry_run=no uninstall=no compat=no
work='' stage='' fresh='' finished=no swapped=no

bold='' green='' red='' plain=''
if [ -t 1 ] && [ -t 2 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; then
	escape=$(printf '\033')
	bold="${escape}[1m" green="${escape}[32m" red="${escape}[31m" plain="${escape}[0m"
fi

# fail WHAT HINT [STATUS]
fail() {
	printf '%sinstall-hook.sh: %s (hint: %s)%s\n' "$red" "$1" "$2" "$plain" >&2
	exit "${3:-1}"
}

# Nobody may be reading any more (| head): that is no reason to stop half-way.
step() { printf '%s==>%s %s\n' "$green" "$plain" "$*" 2>/dev/null || :; }
would() { printf 'would %s\n' "$*"; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }

# ---- what is asked for ----

# Paths stand in JSON, in the manifest and in printed commands, so they are kept plain.
plain_path() {
	case $2 in
	/*[!A-Za-z0-9/._+-]*) fail "$1 $2 has characters other than letters, digits and /._+-" "choose a plainer path" 2 ;;
	/*/../* | /*/..) fail "$1 $2 has .. in it" "write the path without it" 2 ;;
	/*[!/]*) ;;
	*) fail "$1 must be an absolute directory other than /, not '$2'" "for example /opt/nvhook" 2 ;;
	esac
}

without_trailing_slashes() { printf '%s\n' "$1" | sed 's|//*$||'; }

parse() {
	while [ $# -gt 0 ]; do
		case $1 in
		--prefix=* | --hooks-dir=* | --root=* | --wheel=* | --find-links=* | --python=*)
			option=${1%%=*} value=${1#*=}
			shift
			set -- "$option" "$value" "$@"
			;;
		--prefix | --hooks-dir | --root | --wheel | --find-links | --python)
			if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a value" "see --help" 2; fi
			case $1 in
			--prefix) prefix=$2 ;;
			--hooks-dir) hooks_dir=$2 ;;
			--root) root=$2 ;;
			--wheel) wheel=$2 ;;
			--find-links) find_links=$2 ;;
			--python) python=$2 ;;
			esac
			shift 2
			;;
		--no-index) no_index=yes && shift ;;
		--dry-run) dry_run=yes && shift ;;
		--uninstall) uninstall=yes && shift ;;
		--compat) compat=yes && shift ;;
		-h | --help) usage && exit 0 ;;
		*) fail "unknown argument $1" "see --help" 2 ;;
		esac
	done
	plain_path --prefix "$prefix"
	plain_path --hooks-dir "$hooks_dir"
	prefix=$(without_trailing_slashes "$prefix")
	hooks_dir=$(without_trailing_slashes "$hooks_dir")
	if [ -n "$root" ]; then
		[ -d "$root" ] || fail "--root $root is not a directory" "make it first" 2
		root=$(cd -- "$root" && pwd)
		[ "$root" != / ] || root=''
	fi
	[ -z "$wheel" ] || [ -f "$wheel" ] || fail "--wheel $wheel is not a file" "name the .whl file" 2
	[ -z "$find_links" ] || [ -d "$find_links" ] ||
		fail "--find-links $find_links is not a directory" "name a directory of wheels" 2

	lib=$prefix/lib/nvhook
	launcher=$prefix/bin/nvhook
	compat_names="$prefix/bin/nvidia-container-runtime-hook $prefix/bin/nvidia-container-runtime
		$prefix/bin/nvidia-container-cli"
	compat_hook=${compat_names%% *}
	hook_file=$hooks_dir/oci-nvhook.json
	manifest=$root$lib/manifest
}

# ---- the manifest: lines of sha256sum, and in comments what that can't say ----
#
#   # inputs HASH             what it was installed from
#   # directory PATH          a directory that was made for it
#   # link TARGET PATH
#   HASH  PATH                paths are relative to the root directory

# The names under which the launcher is called: what it is depends on the name.
link_names() {
	printf '%s\n' "$launcher" "$prefix/bin/nvhook-runtime"
	# shellcheck disable=SC2086 # a list of paths
	[ "$compat" = no ] || printf '%s\n' $compat_names
}

recorded() { sed -n "s|^# $1 ||p" "$manifest"; }

recorded_paths() {
	sed -n -e 's|^[0-9a-f]\{64\}  ||p' -e 's|^# link [^ ]* ||p' "$manifest"
	printf '%s\n' "${lib#/}/manifest"
}

is_recorded() { [ -f "$manifest" ] && recorded_paths | grep -qxF -- "${1#/}"; }

# Print "changed PATH" or "missing PATH" for everything that is not as it was installed.
differences() {
	(cd "$root/" && sha256sum --check --quiet "$manifest" 2>/dev/null) |
		sed -e 's/: FAILED open or read$//' -e 's/: FAILED$//'
	recorded link | while read -r target path; do
		[ "$(readlink "$root/$path" || :)" = "$target" ] || printf '%s\n' "$path"
	done
}

changed() { differences | while read -r path; do if exists "$root/$path"; then echo "$path"; fi; done; }

# Files in our directory that are neither recorded nor bytecode that Python made of recorded ones.
strangers() {
	(cd "$root/" && find "${lib#/}" ! -type d ! -path '*/__pycache__/*.pyc') | sort >"$work/found"
	recorded_paths | sort | comm -23 "$work/found" -
}

# ---- before anything is changed ----

refuse_foreign() {
	! exists "$root$1" || is_recorded "$1" ||
		fail "$root$1 exists and is not this script's" "${2:-move it away, or choose another --prefix}"
}

check_targets() {
	if [ -f "$manifest" ]; then
		path=$(changed | head -n 1)
		[ -z "$path" ] || fail "$root/$path was changed since it was installed" "move it away and run this again"
		path=$(strangers | head -n 1)
		[ -z "$path" ] || fail "$root/$path is not this script's" "move it out of $root$lib and run this again"
		# Once installed, the name stays until --uninstall: an update must not break docker --gpus.
		if is_recorded "$compat_hook"; then compat=yes; fi
	elif exists "$root$lib" && [ -n "$(ls -A "$root$lib")" ]; then
		fail "$root$lib exists and is not this script's" "move it away, or choose another --prefix"
	fi
	refuse_foreign "$launcher"
	refuse_foreign "$prefix/bin/nvhook-runtime"
	refuse_foreign "$hook_file" "remove the other installation, or choose another --hooks-dir"
	if [ "$compat" = yes ]; then check_compat; fi
	theirs=$root$hooks_dir/oci-nvidia-hook.json
	if exists "$theirs"; then
		echo "install-hook.sh: warning: $theirs is there too; podman calls both hooks (hint: remove one)" >&2
	fi
}

check_compat() {
	hint="remove NVIDIA's container toolkit first, or leave out --compat"
	for name in $compat_names; do
		refuse_foreign "$name" "$hint"
	done
	printf '%s\n' "$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" | tr : '\n' >"$work/path"
	while read -r directory; do
		for name in $compat_names; do
			other=$root$directory/${name##*/}
			exists "$other" || continue
			[ "$(readlink -f "$other")" = "$(readlink -f "$root$lib/bin/nvhook")" ] ||
				fail "$other exists and is not nvhook's" "$hint"
		done
	done <"$work/path"
}

check_templates() {
	for file in oci/hook-entry.json oci/hooks.d/oci-nvhook.json; do
		[ -f "$here/$file" ] || fail "$here/$file is missing" "run this script from a complete checkout"
	done
	[ -n "$wheel" ] || [ -f "$here/pyproject.toml" ] ||
		fail "$here has no source to build" "run this script from a complete checkout, or use --wheel"
}

python_facts() {
	"$1" -I -S -c 'import os, sys
if sys.version_info >= (3, 10):
    print(os.path.realpath(sys.executable), "%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || :
}

find_python() {
	facts=''
	if [ -n "$python" ]; then
		facts=$(python_facts "$python")
		[ -n "$facts" ] || fail "$python is no Python of 3.10 or newer" "name another with --python"
	else
		for python in /usr/bin/python3 /usr/bin/python3.1[0-9] /usr/local/bin/python3 "$(command -v python3 || :)"; do
			facts=$(python_facts "$python")
			[ -z "$facts" ] || break
		done
		[ -n "$facts" ] || fail "no Python of 3.10 or newer" "install one (dnf install python3.12), or name one with --python"
	fi
	interpreter=${facts% *} python_version=${facts##* }
	case $interpreter in
	*[!A-Za-z0-9/._+-]*) fail "the path $interpreter is not plain" "choose another with --python" ;;
	esac
}

# The sources without what building leaves among them.
copy_sources() {
	mkdir "$1"
	(cd "$here" && tar -cf - --exclude=__pycache__ --exclude='*.so' --exclude=nvhook/sim/bin \
		pyproject.toml meson.build README.md LICENSE nvhook) | tar -xof - -C "$1"
}

# One hash of everything the result depends on.
inputs() {
	{
		echo "$prefix $hooks_dir $compat $interpreter $python_version"
		sha256sum <"$0"
		cat "$here/oci/hook-entry.json" "$here/oci/hooks.d/oci-nvhook.json"
		if [ -n "$wheel" ]; then
			sha256sum <"$wheel"
		else
			(cd "$work/source" && find . -type f | sort | xargs -d '\n' sha256sum)
		fi
	} | sha256sum | cut -d ' ' -f 1
}

# ---- building ----

logged() {
	"$@" >>"$work/log" 2>&1 && return
	tail -n 5 "$work/log" >&2
	kept=$(mktemp "${TMPDIR:-/tmp}/install-hook.XXXXXX.log")
	cp "$work/log" "$kept"
	return 1
}

compiler() { "${CC:-cc}" "$@" >>"$work/log" 2>&1; }

check_compiler() {
	# python-prctl has no wheel on the index, so its own can only come from the person.
	if [ -n "$wheel" ] && [ -n "$(find "${find_links:-/nonexistent}" -name 'python_prctl-*.whl' 2>/dev/null)" ]; then
		return
	fi
	missing='' program='int main(void) { return 0; }'
	headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
	echo "$program" >"$work/empty.c"
	printf '#include <sys/capability.h>\n%s\n' "$program" >"$work/capability.c"
	if ! compiler -o "$work/empty" "$work/empty.c"; then
		missing="a C compiler"
	else
		# for the launcher, which a wheel of nvhook has
		[ -n "$wheel" ] || compiler -static -o "$work/empty" "$work/empty.c" || missing="the static C library"
		compiler -c -o "$work/empty" "$work/capability.c" || missing="$missing${missing:+, }sys/capability.h"
	fi
	[ -f "$headers/Python.h" ] || missing="$missing${missing:+, }Python.h"
	[ -n "$missing" ] || return 0
	development=python3
	[ "$interpreter" = "$(readlink -f /usr/bin/python3 || :)" ] || development=python${python_version%.*}
	if command -v dnf >/dev/null; then
		hint="dnf install gcc $development-devel libcap-devel glibc-static"
	else
		hint="apt-get install gcc libc6-dev $development-dev libcap-dev"
	fi
	fail "missing to build: $missing" "$hint"
}

find_pip() {
	pip_of() { "$python" -I -m pip "$@"; }
	if pip_of --version >/dev/null 2>&1; then return; fi
	pip_wheel=$(find "${find_links:-/nonexistent}" -name 'pip-*.whl' 2>/dev/null | sort | tail -n 1)
	if [ -n "$pip_wheel" ]; then
		pip_of() { "$python" -I "$pip_wheel/pip" "$@"; } # a wheel can be run without being installed
		return
	fi
	if "$python" -I -m venv "$work/venv" >>"$work/log" 2>&1; then
		pip_of() { "$work/venv/bin/python" -I -m pip "$@"; }
		return
	fi
	fail "$python has neither pip nor venv" "apt-get install python3-pip, dnf install python3-pip, or a pip wheel in --find-links"
}

pip_run() {
	command=$1
	shift
	set -- --disable-pip-version-check --no-input "$@"
	[ "$no_index" = no ] || set -- --no-index "$@"
	[ -z "$find_links" ] || set -- --find-links "$find_links" "$@"
	PIP_USER=0 PIP_ROOT_USER_ACTION=ignore logged pip_of "$command" "$@" ||
		fail "pip $command failed" "everything it said is in $kept"
}

build_package() {
	find_pip
	if [ -z "$wheel" ]; then
		step "building nvhook from $here"
		pip_run wheel --no-deps --wheel-dir "$work/wheel" "$work/source"
		wheel=$(echo "$work"/wheel/nvhook-*.whl)
	fi
	step "installing nvhook and its dependencies for $interpreter"
	pip_run install --target "$stage" --no-compile "$wheel"
	[ -x "$stage/bin/nvhook" ] || fail "$wheel has no launcher" "is it a wheel of nvhook?"
	# Other packages' commands, and what is only true of pip's own installations.
	find "$stage/bin" -mindepth 1 ! -name nvhook -delete
	find "$stage" -path '*.dist-info/*' \( -name RECORD -o -name direct_url.json -o -name REQUESTED \) -delete
	ln -s "$interpreter" "$stage/bin/python3"
	step "compiling bytecode"
	# unchecked-hash: neither a copy into an image nor a clamped time makes it stale.
	logged "$python" -I -B -m compileall -q -s "$stage" -p "$lib" --invalidation-mode unchecked-hash "$stage" ||
		fail "the installed modules don't compile" "everything it said is in $kept"
	version=$("$stage/bin/nvhook" --version 2>>"$work/log") ||
		fail "the new installation does not start: $(tail -n 1 "$work/log")" "try another --python"
}

# ---- putting it in place ----

# Make a directory and remember which ones were missing.
make_directory() {
	missing=''
	parent=$1
	while [ -n "$parent" ] && ! exists "$root$parent"; do
		missing="$parent $missing"
		parent=${parent%/*}
	done
	for made in $missing; do
		mkdir "$root$made" 2>/dev/null || fail "can't make $root$made" "are you root?"
		echo "# directory ${made#/}" >>"$work/directories"
	done
	if [ ! -d "$root$1" ] || [ ! -w "$root$1" ]; then
		fail "$root$1 is not a writable directory" "are you root?"
	fi
}

write_manifest() {
	[ ! -f "$manifest" ] || sed -n '/^# directory /p' "$manifest" >>"$work/directories"
	{
		echo "# $version, by scripts/install-hook.sh: what it installed, relative to the root directory"
		echo "# inputs $fingerprint"
		sort -u "$work/directories"
		echo "# link $interpreter ${lib#/}/bin/python3"
		link_names | sed 's|^/|# link ../lib/nvhook/bin/nvhook |'
		(cd "$stage" && find . -type f | sort | xargs -d '\n' sha256sum) | sed "s|  \./|  ${lib#/}/|"
		sha256sum <"$work/oci-nvhook.json" | sed "s|-$|${hook_file#/}|"
	} >"$work/manifest"
	install -m 644 "$work/manifest" "$stage/manifest"
}

# Exchange two directories in one step (Linux 3.15; not every file system).
exchange() {
	"$python" -I -S -B -c 'import ctypes, os, sys
a, b = map(os.fsencode, sys.argv[1:])
sys.exit(ctypes.CDLL(None).renameat2(-100, a, -100, b, 2) != 0)' "$1" "$2" 2>/dev/null && return
	mv -T "$1" "$1.old" && mv -T "$2" "$1" && mv -T "$1.old" "$2"
}

swap() {
	if exists "$root$lib"; then
		exchange "$stage" "$root$lib"
		swapped=exchanged
	else
		mv -T "$stage" "$root$lib"
		swapped=moved
	fi
}

put_link() {
	if [ "$(readlink "$root$1" || :)" != ../lib/nvhook/bin/nvhook ]; then
		fresh="$fresh $1"
		ln -s ../lib/nvhook/bin/nvhook "$root$1"
	fi
	step "$1 -> ../lib/nvhook/bin/nvhook"
}

put_hook_file() {
	if ! cmp -s "$work/oci-nvhook.json" "$root$hook_file"; then
		exists "$root$hook_file" || fresh="$fresh $hook_file"
		install -m 644 "$work/oci-nvhook.json" "$root$hook_file.new"
		mv -T "$root$hook_file.new" "$root$hook_file"
	fi
	step "$hook_file"
}

# What the last installation had outside of its directory and this one has not.
drop_obsolete() {
	[ -f "$stage/manifest" ] || return 0
	manifest=$stage/manifest
	recorded_paths | sort >"$work/before"
	manifest=$root$lib/manifest
	recorded_paths | sort | comm -13 - "$work/before" | while read -r path; do
		case /$path in
		"$lib"/*) ;;
		*) rm -f "$root/$path" ;;
		esac
	done
}

# Whatever happened: no half of an installation, no left-over.
clean_up() {
	status=$?
	trap - EXIT
	if [ "$finished" = no ]; then
		for path in $fresh; do rm -f "$root$path"; done
		case $swapped in
		exchanged) exchange "$stage" "$root$lib" ;;
		moved) rm -rf "$root$lib" ;;
		esac
		[ -z "$stage" ] || rm -rf "$stage"
		if [ -f "$work/directories" ]; then
			sed 's|^# directory ||' "$work/directories" | sort -r | while read -r path; do
				rmdir "$root/$path" 2>/dev/null || :
			done
		fi
	fi
	[ -z "$stage" ] || rm -rf "$stage"
	[ -z "$work" ] || rm -rf "$work"
	exit "$status"
}

substituted() { sed "s|/usr/local/bin/nvhook|$launcher|" "$here/oci/$1"; }

advise() {
	engines="nothing to do, they read $hook_file"
	[ "$hooks_dir" = /usr/share/containers/oci/hooks.d ] ||
		engines="name $hooks_dir in hooks_dir (containers.conf, crio.conf)"
	docker="run this again with --compat"
	[ "$compat" = no ] || docker="restart docker, so that it finds ${compat_hook##*/} on its PATH"
	options=''
	[ "$prefix" = /usr/local ] || options=" --prefix $prefix"
	[ -z "$root" ] || options="$options --root '$root'"
	cat 2>/dev/null <<EOF || :

${bold}runc, crun:$plain put this into the config.json of a bundle whose container may have GPUs

  "hooks": {
    "prestart": [
$(substituted hook-entry.json | sed 's/^/      /')
    ]
  }

${bold}podman, CRI-O:$plain $engines
${bold}docker --gpus:$plain $docker
${bold}check:$plain         $launcher list
               $launcher plan --gpus all
${bold}settings:$plain      none needed; '$launcher config default' prints a file for /etc/nvhook/config.toml
${bold}remove:$plain        $0 --uninstall$options
EOF
}

describe_installation() {
	verb=install
	[ ! -f "$manifest" ] || verb=replace
	[ -n "$wheel" ] || would "build nvhook from $here"
	would "$verb $root$lib: ${wheel:-nvhook} and its dependencies with compiled bytecode, for $interpreter"
	would "write $manifest"
	for name in $(link_names); do
		would "link $root$name -> ../lib/nvhook/bin/nvhook"
	done
	would "write $root$hook_file:"
	sed 's/^/  /' "$work/oci-nvhook.json"
}

install_nvhook() {
	check_templates
	find_python
	check_targets
	[ -n "$wheel" ] || copy_sources "$work/source"
	fingerprint=$(inputs)
	substituted hooks.d/oci-nvhook.json >"$work/oci-nvhook.json"
	if [ -f "$manifest" ] && [ "$(recorded inputs)" = "$fingerprint" ] && [ -z "$(differences)" ]; then
		step "$root$lib is up to date: nothing to do"
	elif [ "$dry_run" = yes ]; then
		check_compiler
		describe_installation
		return
	else
		check_compiler
		: >"$work/directories"
		make_directory "$prefix/lib"
		make_directory "$prefix/bin"
		make_directory "$hooks_dir"
		stage=$(mktemp -d "$root$prefix/lib/.nvhook.XXXXXX")
		chmod 755 "$stage"
		build_package
		write_manifest
		swap
		step "$lib: $version"
		for name in $(link_names); do
			put_link "$name"
		done
		put_hook_file
		finished=yes
		drop_obsolete
	fi
	advise
}

# ---- removing ----

uninstall_nvhook() {
	if [ ! -f "$manifest" ]; then
		step "$root$lib has no installation: nothing to do"
		return
	fi
	changed >"$work/changed"
	if [ "$dry_run" = yes ]; then
		recorded_paths | grep -vxFf "$work/changed" | sed "s|^|would remove $root/|"
		sed "s|^|would keep $root/|; s|\$|: changed since it was installed|" "$work/changed"
		return
	fi
	[ -w "$root$lib" ] || fail "$root$lib is not writable" "are you root?"
	recorded directory | sort -r >"$work/made"
	step "removing $root$lib"
	# The names that runtimes call go first; the manifest, by which a second try goes on, last.
	recorded_paths | grep -vxFf "$work/changed" | grep -vxF "${lib#/}/manifest" |
		awk -v own="${lib#/}/" 'index($0, own) == 1 { inside[++n] = $0; next } { print } END { for (i = 1; i <= n; i++) print inside[i] }' |
		(cd "$root/" && xargs -r -d '\n' rm -f)
	find "$root$lib" -path '*/__pycache__/*.pyc' -delete
	rm -f "$manifest"
	find "$root$lib" -depth -type d -empty -delete
	while read -r path; do rmdir "$root/$path" 2>/dev/null || :; done <"$work/made"
	sed "s|^|kept $root/|; s|\$|: changed since it was installed|" "$work/changed"
	if [ -d "$root$lib" ]; then
		(cd "$root/" && find "${lib#/}" ! -type d) | grep -vxFf "$work/changed" |
			sed "s|^|kept $root/|; s|\$|: not installed by this script|"
	fi
	step "removed. Take the hook out of your runtimes' configurations too, or their containers won't start."
	for path in /etc/nvhook /var/log/nvhook.log; do
		if exists "$root$path"; then echo "kept $root$path: not installed by this script"; fi
	done
}

parse "$@"
work=$(mktemp -d)
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
trap : PIPE
if [ "$uninstall" = yes ]; then uninstall_nvhook; else install_nvhook; fi
