#!/bin/sh
# Put everything that the GPU check needs into one folder, to be carried to a machine without network.
#
#   tests/gpu/pack.sh DIR     DIR: new or empty; prints its size, fails above 60 MB
#
# Needs: Debian or Ubuntu with network, python3 with venv, a C compiler with the static C library.
# Run there: DIR/check.sh
set -eu

LIMIT_KB=$((60 * 1024))
PACKAGES="runc libseccomp2 libc6 libc-bin libgcc-s1 busybox-static patchelf"
# Interpreters that the other machine may have. The oldest needs more packages than the others.
OLDEST=3.10
PYTHONS="$OLDEST 3.11 3.12 3.13 3.14"
# Where check.sh links its copy of lib/ to: runc starts itself again through /proc/self/exe, so it
# can't be started as "ld.so runc", and the path of its loader has to be absolute.
LIBRARIES=/run/nvhook-gpu-check

say() { echo "pack.sh: $*" >&2; }

fail() {
	say "$1 (hint: $2)"
	exit 1
}

folder=${1:?usage: pack.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
machine=$(uname -m)
for program in apt-get dpkg-deb "${CC:=cc}" python3; do
	command -v "$program" >/dev/null || fail "$program is missing" "see the head of pack.sh"
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
[ -z "$(ls -A "$folder")" ] || fail "$folder is not empty" "name a new folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
umask 022
mkdir -p "$folder/bin" "$folder/lib" "$folder/wheels"

# ---- the distribution's packages: downloaded and unpacked, not installed ----

say "downloading $PACKAGES"
mkdir "$work/debs"
# shellcheck disable=SC2086 # one word for each package
(cd "$work/debs" && apt-get -qq -o APT::Sandbox::User=root download $PACKAGES) ||
	fail "apt-get download failed" "apt-get update"
for package in $PACKAGES; do
	mkdir "$work/$package"
	dpkg-deb --extract "$work/debs/${package}_"*.deb "$work/$package"
done

copy() { # PACKAGE NAME DIR: the file whose path ends in NAME
	path=$(find "$work/$1" -path "*/$2" ! -type d | head -n 1)
	[ -n "$path" ] || fail "$1 has no $2" "has the package changed?"
	cp -L "$path" "$3/"
}

# ---- runc with its own loader ----

patchelf="$work/patchelf/usr/bin/patchelf"
copy runc sbin/runc "$folder/bin"
loader=$(basename "$("$patchelf" --print-interpreter "$folder/bin/runc")")
copy libc6 "$loader" "$folder/lib"
copy libc6 libc.so.6 "$folder/lib"
copy libseccomp2 libseccomp.so.2 "$folder/lib"
for needed in $("$patchelf" --print-needed "$folder/bin/runc"); do
	[ -e "$folder/lib/$needed" ] || copy libc6 "$needed" "$folder/lib"
done
"$patchelf" --set-interpreter "$LIBRARIES/$loader" --force-rpath --set-rpath "$LIBRARIES" \
	"$folder/bin/runc"
copy busybox-static bin/busybox "$folder/bin"

# ---- the container's root: a C library, its loader and ldconfig, busybox, and the two programs ----

say "making the container's root"
root="$work/root"
for directory in bin sbin lib lib64; do
	mkdir -p "$root/usr/$directory"
	ln -s "usr/$directory" "$root/$directory"
done
for package in libc6 libc-bin libgcc-s1; do
	dpkg-deb --fsys-tarfile "$work/debs/${package}_"*.deb |
		tar --extract --directory "$root" --keep-directory-symlink --no-same-owner
done
(cd "$root/usr" && rm -rf share bin libexec lib/locale lib/*/gconv lib/*/audit)
mkdir -p "$root/usr/bin" "$root/proc" "$root/sys" "$root/dev" "$root/etc" "$root/run" "$root/tmp"
cp "$folder/bin/busybox" "$root/usr/bin/"
for applet in $("$folder/bin/busybox" --list); do
	case $applet in busybox | ldconfig) continue ;; esac
	ln -s busybox "$root/usr/bin/$applet"
done
echo "root:x:0:0:root:/:/bin/sh" >"$root/etc/passwd"
# shellcheck disable=SC1091 # what this machine is
(. /etc/os-release && echo "${VERSION_ID:-unknown}") >"$root/etc/debian_version"
"$CC" -O2 -Wall -static -o "$root/probe" "$repository/tests/runtime/probe.c" ||
	fail "a static program can't be built" "apt-get install gcc libc6-dev"
"$CC" -O2 -Wall -o "$root/cuda_check" "$repository/tests/runtime/cuda_check.c" -ldl
cp "$root/probe" "$folder/bin/"
"$root/sbin/ldconfig" -r "$root" || fail "ldconfig failed for the container's root" "see above"
tar --create --file "$folder/root.tar" --directory "$root" --owner=0 --group=0 --sort=name .

# ---- wheels ----

say "building nvhook"
python3 -m venv "$work/venv" || fail "no virtual environment" "apt-get install python3-venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check"
$pip wheel --no-deps --wheel-dir "$work/wheel" "$repository"
nvhook=$(echo "$work"/wheel/nvhook-*.whl)
# Without python-prctl: it has no wheels, and only the sandboxed ldconfig needs it.
"$work/venv/bin/python" - "$nvhook" >"$work/requirements" <<'EOF'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    for line in wheel.read(name).decode().splitlines():
        if line.startswith("Requires-Dist: ") and "python-prctl" not in line:
            print(line.removeprefix("Requires-Dist: "))
EOF
grep -v ';' "$work/requirements" >"$work/everywhere"
# pip evaluates conditions for the interpreter it runs in, not for --python-version.
(sed 's/;.*//' "$work/requirements" && echo typing-extensions) >"$work/oldest"
for version in $PYTHONS; do
	say "downloading wheels for Python $version"
	wanted="$work/everywhere"
	[ "$version" != "$OLDEST" ] || wanted="$work/oldest"
	into="$work/wheels-$version"
	$pip download --dest "$into" --only-binary=:all: --implementation cp --python-version "$version" \
		--platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" \
		--requirement "$wanted" || fail "pip download failed" "is a package registry reachable?"
	cp "$nvhook" "$into/"
	ls "$into" >"$folder/wheels/$version.list"
	cp "$into"/*.whl "$folder/wheels/"
done

cp "$here/check.sh" "$here/README.md" "$folder/"
for module in "$here"/*.py; do
	case $module in */test_*) ;; *) cp "$module" "$folder/" ;; esac
done
chmod 755 "$folder/check.sh" "$folder"/bin/*

size=$(du -sk "$folder" | cut -f1)
echo "$folder: $size KB"
[ "$size" -le "$LIMIT_KB" ] || fail "that is more than $LIMIT_KB KB" "what has grown?"
