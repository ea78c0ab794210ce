"""Device programs of cgroup v2: real runtimes' programs, patched and asked through open()."""

import ctypes
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nvhook
from nvhook._native import call, lib
from nvhook.errors import ContainerError, UnsupportedError
from nvhook.kernel import bpf, cgroup, device_rules, mountinfo, programs

DENIED = "Operation not permitted"
NO_DRIVER = "No such device or address"  # ENXIO: the cgroup has let it through
GPU = [("c", 195, 1, "rw"), ("c", 195, 255, "rw")]
ALLOW_ALL = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)
DENY_ALL = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
pytestmark = pytest.mark.root


@pytest.fixture
def mount_point(require: Callable[[bool, str], None], root_host: None) -> Path:
    """Where this machine's cgroup2 is mounted."""
    found = [mount for mount in mountinfo.read() if mount.fs_type == "cgroup2"]
    require(bool(found), "needs a cgroup2 mount")
    return Path(found[-1].mount_point)


class Directory:
    """A cgroup of our own, with a sleeping process in it."""

    def __init__(self, path: Path, pid: int) -> None:
        self.path, self.pid = path, pid
        self.fd = os.open(path, os.O_RDONLY)

    def attach(self, insns: bytes, name: bytes = b"", flags: int = programs.ALLOW_MULTI) -> int:
        program = programs.load(insns, name)
        call(lib.nvh_bpf_prog_attach, self.fd, program, flags, -1)
        number = call(lib.nvh_bpf_prog_id, program)
        os.close(program)
        return number

    def programs(self) -> dict[int, bytes]:
        found = {}
        for number in programs.attached(self.fd)[0]:
            program = programs.open_program(number)
            found[number] = programs.instructions(program)
            os.close(program)
        return found


@pytest.fixture
def directory(mount_point: Path, process_in: Callable[[Path], int]) -> Iterator[Directory]:
    path = mount_point / f"nvhook-test-{os.getpid()}"
    made = Directory(path, process_in(path))
    yield made
    os.close(made.fd)


def name(number: int) -> bytes:
    program = programs.open_program(number)
    try:
        return programs.name_of(program)
    finally:
        os.close(program)


def container_programs(box, mount_point: Path) -> dict[int, bytes]:
    path = mount_point / cgroup.memberships("/proc", box.pid)[1].lstrip("/")
    seen = Directory(path, box.pid)
    try:
        return seen.programs()
    finally:
        os.close(seen.fd)


def test_allows_what_is_asked_and_nothing_else(pure_v2_view, container, mount_point):
    box = container(pure_v2_view, "runc")
    assert box.open(195, 1) == DENIED
    ((old, original),) = container_programs(box, mount_point).items()

    (line,) = pure_v2_view.allow(box.pid, GPU)

    ((new, patched),) = container_programs(box, mount_point).items()
    assert line == f"v2: program {old} -> {new}"
    assert bpf.split(patched) == (tuple(GPU), original)
    assert box.open(195, 1, mode="rw") == NO_DRIVER
    assert box.open(195, 255) == NO_DRIVER
    assert box.open(195, 0) == DENIED
    assert box.open(195, 1, kind="b") == DENIED
    assert box.open(1, 3) == "opened"  # what runc itself allows: /dev/null


def test_second_time_changes_nothing(pure_v2_view, container, mount_point):
    box = container(pure_v2_view, "runc")
    pure_v2_view.allow(box.pid, GPU)
    before = container_programs(box, mount_point)

    assert pure_v2_view.allow(box.pid, GPU) == ["v2: unchanged"]

    assert container_programs(box, mount_point) == before


def test_rules_are_added_to_those_of_an_earlier_run(pure_v2_view, container, mount_point):
    box = container(pure_v2_view, "runc")
    ((_, original),) = container_programs(box, mount_point).items()
    pure_v2_view.allow(box.pid, GPU)
    pure_v2_view.allow(box.pid, [("c", 195, 0, "rw"), ("c", 195, 1, "r")])

    ((_, patched),) = container_programs(box, mount_point).items()
    rules, rest = bpf.split(patched)
    assert rules == (("c", 195, 0, "rw"), *GPU)
    assert rest == original
    assert box.open(195, 0) == NO_DRIVER
    assert box.open(195, 1, mode="rw") == NO_DRIVER
    assert box.open(195, 2) == DENIED


def test_read_access_is_not_write_access(pure_v2_view, container):
    box = container(pure_v2_view, "runc")
    pure_v2_view.allow(box.pid, [("c", 195, 3, "r")])
    assert box.open(195, 3, mode="r") == NO_DRIVER
    assert box.open(195, 3, mode="rw") == DENIED


def test_the_emulator_answers_as_the_kernel_does(pure_v2_view, container, mount_point):
    devices = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": 7, "access": "rm"},
        {"allow": True, "type": "c", "major": 195, "minor": 8, "access": "rwm"},
        {"allow": True, "type": "c", "major": 240, "access": "rwm"},
    ]
    box = container(pure_v2_view, "runc", devices=devices)
    ((_, insns),) = container_programs(box, mount_point).items()
    for major, minor in ((195, 7), (195, 8), (195, 9), (240, 0), (240, 77), (241, 0), (1, 5)):
        for mode in ("r", "rw"):
            kernel = box.open(major, minor, mode=mode) != DENIED
            assert bpf.emulate(insns, "c", mode, major, minor) == kernel, (major, minor, mode)


def test_a_container_in_the_callers_own_cgroup_is_left_alone(pure_v2_view):
    assert pure_v2_view.allow(os.getpid(), GPU) == [
        "v2: shares the runtime's own cgroup, left alone"
    ]


def test_programs_that_hold_the_caller_too_are_left_alone(pure_v2_view, directory, process_in):
    directory.attach(DENY_ALL)
    before = directory.programs()
    below = process_in(directory.path / "sub")
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from nvhook.errors import ContainerError
from nvhook.kernel import cgroup
with open(sys.argv[2] + "/cgroup.procs", "w") as file: file.write(str(os.getpid()))
for pid in sys.argv[3:]:
    try: print(cgroup.find(int(pid)).allow([("c", 195, 1, "rw")])[0])
    except ContainerError as error: print(error.message.partition(" (")[0])
"""
    own = f"/sys/fs/cgroup/{directory.path.name}"
    repository = str(Path(nvhook.__file__).resolve().parents[1])
    done = pure_v2_view.python(code, repository, own, str(directory.pid), str(below))
    assert done.stdout.splitlines() == [
        "v2: shares the runtime's own cgroup, left alone",
        "a cgroup above the container's denies the device c 195:1 rw",
    ], done.stderr
    assert directory.programs() == before


def test_a_hierarchy_under_another_mount_is_not_mounted(own_view, directory):
    directory.attach(DENY_ALL)
    code = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from nvhook.kernel import cgroup
subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/fs/cgroup/devices"], check=True)
print(len(cgroup.find(int(sys.argv[2])).allow([("c", 195, 1, "rw")])))
"""
    private = ["unshare", "--mount", "--propagation", "private", own_view.executable, "-c", code]
    done = own_view.run(*private, Path(nvhook.__file__).resolve().parents[1], str(directory.pid))
    assert done.stdout == "1\n", done.stderr
    (patched,) = directory.programs().values()
    assert bpf.split(patched) == ((("c", 195, 1, "rw"),), DENY_ALL)


def test_a_hierarchy_whose_place_the_mount_table_escapes(odd_place_view, directory):
    directory.attach(DENY_ALL)

    (line,) = odd_place_view.allow(directory.pid, GPU)

    ((_, patched),) = directory.programs().items()
    assert line.startswith("v2: program ")
    assert bpf.split(patched)[0] == tuple(GPU)


def test_no_program_means_no_restriction(pure_v2_view, directory):
    assert pure_v2_view.allow(directory.pid, GPU) == [
        "v2: no program attached, nothing of its own restricts devices"
    ]
    assert directory.programs() == {}


def test_every_program_of_the_directory_is_patched_and_keeps_its_name(pure_v2_view, directory):
    old = {directory.attach(DENY_ALL, b"first"), directory.attach(ALLOW_ALL, b"second")}

    lines = pure_v2_view.allow(directory.pid, GPU)

    after = directory.programs()
    assert len(lines) == len(after) == 2
    assert not old & set(after)
    assert [bpf.split(insns) for insns in after.values()] == [
        (tuple(GPU), DENY_ALL),
        (tuple(GPU), ALLOW_ALL),
    ]
    assert [name(number) for number in after] == [b"first", b"second"]


@pytest.mark.parametrize("flags", [0, 1], ids=["exclusive", "overridable"])
def test_a_program_attached_alone_is_replaced(pure_v2_view, directory, flags):
    directory.attach(DENY_ALL, flags=flags)
    pure_v2_view.allow(directory.pid, GPU)
    assert [bpf.split(insns) for insns in directory.programs().values()] == [(tuple(GPU), DENY_ALL)]


def test_a_link_gets_the_patched_program(pure_v2_view, directory):
    program = programs.load(DENY_ALL, b"linked")
    link = link_create(directory.fd, program)
    try:
        (line,) = pure_v2_view.allow(directory.pid, GPU)
        (patched,) = directory.programs().values()
        assert line == f"v2: program {call(lib.nvh_bpf_prog_id, program)} -> a new one on its link"
        assert bpf.split(patched) == (tuple(GPU), DENY_ALL)
    finally:
        os.close(link)
        os.close(program)


def test_programs_above_count_when_the_process_has_moved_down(pure_v2_view, directory, process_in):
    directory.attach(DENY_ALL)
    pid = process_in(directory.path / "sub")
    (line,) = pure_v2_view.allow(pid, GPU)
    assert line.startswith("v2: program")
    assert [bpf.split(insns) for insns in directory.programs().values()] == [(tuple(GPU), DENY_ALL)]


def test_a_denial_above_is_an_error_before_anything_is_swapped(directory, process_in):
    directory.attach(DENY_ALL)
    path = directory.path / "sub"
    below = Directory(path, process_in(path))
    try:
        below.attach(DENY_ALL)
        before = below.programs()
        with pytest.raises(ContainerError, match="a cgroup above the container's denies"):
            programs.allow(below.fd, tuple(GPU))
        assert below.programs() == before

        programs.allow(directory.fd, tuple(GPU))
        programs.allow(below.fd, tuple(GPU))
        assert [bpf.split(p) for p in below.programs().values()] == [(tuple(GPU), DENY_ALL)]
    finally:
        os.close(below.fd)


def test_a_program_above_that_is_not_understood_is_the_kernels_to_judge(directory, process_in):
    stack_store = struct.pack("<BBhi", 0x62, 10, -4, 0) + ALLOW_ALL
    above = directory.attach(stack_store)
    path = directory.path / "sub"
    below = Directory(path, process_in(path))
    try:
        below.attach(DENY_ALL)
        programs.allow(below.fd, tuple(GPU))
        assert [bpf.split(p) for p in below.programs().values()] == [(tuple(GPU), DENY_ALL)]
        assert list(directory.programs()) == [above]
    finally:
        os.close(below.fd)


def test_nothing_is_swapped_if_one_program_can_not_be_patched(directory):
    stack_store = struct.pack("<BBhi", 0x62, 10, -4, 0) + ALLOW_ALL
    directory.attach(DENY_ALL)
    directory.attach(stack_store)
    before = directory.programs()
    with pytest.raises(UnsupportedError, match="instruction 0x62"):
        programs.allow(directory.fd, tuple(GPU))
    assert directory.programs() == before


def test_many_rules_pass_the_verifier_unchanged(directory):
    numbers = [0, 1, 2, 195, 226, device_rules.MAX_MAJOR]
    rules = tuple(
        (kind, major, minor, access)
        for kind in "bc"
        for major in numbers
        for minor in (0, 1, 255, device_rules.MAX_MINOR)
        for access in ("r", "rw", "rwm", "m")
    )
    directory.attach(DENY_ALL)
    assert len(programs.allow(directory.fd, rules)) == 1
    imex = tuple(("c", 234, minor, "rw") for minor in range(2048))
    assert len(programs.allow(directory.fd, imex)) == 1
    (insns,) = directory.programs().values()
    assert bpf.split(insns) == (device_rules.canonical(rules + imex), DENY_ALL)


def test_the_kernel_refuses_nonsense_with_a_reason():
    with pytest.raises(UnsupportedError, match=r"refuses the patched program: .*R3"):
        programs.load(struct.pack("<BBhi", 0xBF, 0x30, 0, 0) + ALLOW_ALL, b"")


def test_hybrid_hosts_patch_both_hierarchies(own_view, directory, require):
    v1 = Path("/sys/fs/cgroup/devices")
    require(v1.is_dir(), f"needs cgroup v1 at {v1}")
    own = v1 / directory.path.name
    own.mkdir()
    try:
        (own / "devices.deny").write_text("a *:* rwm")
        (own / "cgroup.procs").write_text(str(directory.pid))
        assert own_view.allow(directory.pid, GPU) == ["v1: 2 rules"]
        directory.attach(DENY_ALL)
        first, second = own_view.allow(directory.pid, GPU)
        assert first == "v1: unchanged"
        assert second.startswith("v2: program")
    finally:
        (v1 / "cgroup.procs").write_text(str(directory.pid))
        own.rmdir()


def link_create(directory: int, program: int) -> int:
    """BPF_LINK_CREATE; nvhook itself never makes a link."""
    libc = ctypes.CDLL(None, use_errno=True)
    request = struct.pack("<IIII", program, directory, 6, 0) + bytes(48)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    link = libc.syscall(number, 28, request, len(request))
    assert link >= 0, os.strerror(ctypes.get_errno())
    return link


def test_without_any_hierarchy_the_error_says_what_to_mount(own_view):
    code = "import json, sys; sys.path.insert(0, sys.argv[1])\n" + "\n".join(
        (
            "from nvhook.errors import HostError",
            "from nvhook.kernel import cgroup",
            "try: cgroup.find(1)",
            "except HostError as error: print(json.dumps(str(error)))",
        )
    )
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    script = 'umount -R /sys/fs/cgroup && exec "$@"'
    repository = str(Path(nvhook.__file__).resolve().parents[1])
    done = own_view.run(*private, script, "sh", own_view.executable, "-c", code, repository)
    assert done.returncode == 0, done.stderr
    assert "mount cgroup2" in json.loads(done.stdout)
