"""A host with a driver that is only directories: enough ELF, ld.so.cache and /proc to be read."""

import os
import struct
from pathlib import Path

import pytest

from nvhook.core.inventory import HostNode
from nvhook.host import mig_devices, nodes, platforms, tegra, wsl

EM_386, EM_PPC64, EM_X86_64, EM_AARCH64 = 3, 21, 62, 183
# the ABI in brackets in a line of ldconfig -p, in lower case: ELF machine, word size, cache flags
TAGS = {
    "libc6,x86-64": (EM_X86_64, 64, 0x0303),
    "libc6": (EM_386, 32, 0x0003),
    "libc6,aarch64": (EM_AARCH64, 64, 0x0A03),
    "libc6,64bit": (EM_PPC64, 64, 0x0503),
}


def elf_image(machine: int, bits: int, soname: str) -> bytes:
    """Return a shared library of a dynamic segment (SONAME, NEEDED libc.so.6) and nothing else."""
    strings = b"\0libc.so.6\0" + soname.encode() + b"\0"
    header_size, entry_size, word = (64, 56, "Q") if bits == 64 else (52, 32, "I")
    dynamic_at = header_size + 2 * entry_size
    tags = [(1, 1), (14, 11), (10, len(strings)), (5, 0), (0, 0)]
    strings_at = dynamic_at + len(tags) * 2 * (bits // 8)
    tags[3] = (5, strings_at)
    dynamic = b"".join(struct.pack(f"<2{word}", *tag) for tag in tags)
    size = strings_at + len(strings)

    def program_header(kind: int, start: int, length: int) -> bytes:
        if bits == 64:
            return struct.pack("<IIQQQQQQ", kind, 4, start, start, start, length, length, 8)
        return struct.pack("<8I", kind, start, start, start, length, length, 4, 4)

    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    places = (3, machine, 1, 0, header_size, 0, 0, header_size, entry_size, 2, 0, 0, 0)
    header = struct.pack(f"<HHI3{word}I6H", *places)
    headers = program_header(1, 0, size) + program_header(2, dynamic_at, len(dynamic))
    return ident + header + headers + dynamic + strings


def loader_cache(entries: list[tuple[str, str, int]]) -> bytes:
    """Return an ld.so.cache in glibc's new format with (name, path, flags) in this order."""
    strings = b""
    rows = b""
    start = 48 + 24 * len(entries)
    for name, path, flags in entries:
        name_at = start + len(strings)
        strings += name.encode() + b"\0"
        rows += struct.pack("<iIIIQ", flags, name_at, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, 0)
    return header + rows + strings


def ldconfig_lines(text: str) -> list[tuple[str, str, str]]:
    """Return (name, tag, path) of each entry in a text of ldconfig -p; tags in lower case."""
    lines = []
    for line in text.splitlines():
        left, arrow, path = line.strip().partition(" => ")
        name, _, tag = left.partition(" (")
        if arrow and tag.rstrip(")").lower() in TAGS:
            lines.append((name, tag.rstrip(")").lower(), path))
        elif arrow:
            lines.append((name, "libc6,x86-64", path))
    return lines


class FakeHost:
    """Directories that stand for /, /dev, /proc and /sys of a host with a driver."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.dev = directory / "dev"
        self.proc = directory / "proc"
        self.sys = directory / "sys"
        self.state = directory / "state"
        for path in (self.root / "etc", self.dev, self.proc, self.sys):
            path.mkdir(parents=True)

    @property
    def roots(self) -> tuple[str, str, str, str]:
        return str(self.root), str(self.dev), str(self.proc), str(self.sys)

    def put(self, path: str, content: bytes = b"", mode: int = 0o644) -> Path:
        """Write a file of the driver root; its directories must not be absolute links."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
        return target

    def library(self, path: str, soname: str, tag: str = "libc6,x86-64") -> Path:
        machine, bits, _ = TAGS[tag]
        return self.put(path, elf_image(machine, bits, soname))

    def link(self, path: str, target: str) -> None:
        """Make a link; an absolute target means a path inside the root."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def cache(self, entries: list[tuple[str, str, str]]) -> None:
        """Write the loader cache from (name, tag, path)."""
        rows = [(name, path, TAGS[tag][2]) for name, tag, path in entries]
        self.put("/etc/ld.so.cache", loader_cache(rows))

    def ldconfig(self, text: str) -> list[tuple[str, str, str]]:
        """Write the loader cache that ldconfig -p printed so; return its (name, tag, path)."""
        entries = ldconfig_lines(text)
        self.cache(entries)
        return entries

    def proc_text(self, path: str, text: str) -> None:
        target = self.proc / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def driver(self, version: str = "550.54.15") -> None:
        """Load a driver: version, params and majors."""
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Feb 22 2024\n"
        self.proc_text("driver/nvidia/version", line + "GCC version:  gcc version 115.2.0\n")
        self.proc_text("driver/nvidia/params", "ModifyDeviceFiles: 1\n")
        self.proc_text("devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n")
        self.proc_text("sys/kernel/random/boot_id", "0d7e1a3c-0000-4000-8000-000000000001\n")

    def gpu(
        self,
        bus_id: str,
        minor: int,
        uuid: str = "",
        model: str = "NVIDIA L4",
        tail: str = "",
    ) -> None:
        """Put a GPU into /proc/driver/nvidia/gpus."""
        uuid = uuid or f"GPU-00000000-0000-4000-8000-{minor:012d}"
        self.proc_text(
            f"driver/nvidia/gpus/{bus_id}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
            f"Bus Location: \t {bus_id}\nDevice Minor: \t {minor}\n{tail}",
        )

    def node(self, name: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> None:
        """Make a character device node in dev (root only)."""
        path = self.dev / name
        os.mknod(path, 0o020000 | mode, os.makedev(major, minor))
        os.chmod(path, mode)
        os.chown(path, 0, gid)

    def fake_node(self, name: str, major: int, minor: int) -> None:
        """Put a text in dev that the fixture fake_nodes takes for a node: anyone can."""
        path = self.dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{major}:{minor}")


@pytest.fixture
def fake_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let discovery take the texts of FakeHost.fake_node for device nodes."""
    take_fake_nodes(monkeypatch)


def take_fake_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let discovery take the texts of FakeHost.fake_node for device nodes."""

    def read(directory: str, name: str) -> HostNode | None:
        path = Path(directory, name)
        if not path.is_file():
            return None
        major, minor = path.read_text().split(":")
        return HostNode(name, str(path), int(major), int(minor), 0o666, 0, 0)

    for module in (nodes, mig_devices, platforms, tegra, wsl):
        monkeypatch.setattr(module, "read_node", read)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host with neither driver nor GPU yet."""
    return FakeHost(tmp_path)


@pytest.fixture
def tags() -> dict[str, tuple[int, int, int]]:
    """Tag of ldconfig -p -> (ELF machine, bits, cache flags)."""
    return TAGS
