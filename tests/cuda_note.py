"""Put NVIDIA's note on forward compatibility into a small ELF file, as cuda-compat packages do."""

import json
import struct

from nvhook.formats.cuda_note import OWNER, SECTION


def with_note(image: bytes, drivers: list[int], cuda: str = "13.1") -> bytes:
    """Return a 64-bit ELF image with section headers and the note in a section."""
    content = {"Format": 1, "CUDA Version": cuda, "Driver": drivers, "Device": [7, 8, 9]}
    return with_section(image, note(json.dumps(content).encode()))


def note(text: bytes, owner: bytes = OWNER + b"\0") -> bytes:
    """Return a note: sizes of its name and text, a type, both padded to four bytes."""
    padded = owner.ljust((len(owner) + 3) // 4 * 4, b"\0")
    return struct.pack("<III", len(owner), len(text), 1) + padded + text


def with_section(image: bytes, data: bytes, name: bytes = SECTION, kind: int = 7) -> bytes:
    """Return an image with three sections: the null one, data, and their names."""
    names = b"\0" + name + b"\0.shstrtab\0"
    data_at = len(image)
    names_at = data_at + len(data)
    table_at = names_at + len(names)

    def header(name_at: int, kind: int, start: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, start, size, 0, 0, 4, 0)

    table = header(0, 0, 0, 0)
    table += header(1, kind, data_at, len(data))
    table += header(len(name) + 2, 3, names_at, len(names))
    head = bytearray(image)
    struct.pack_into("<Q", head, 0x28, table_at)
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)
    return bytes(head) + data + names + table
