"""What a libcuda of CUDA's forward-compatibility package says of itself, in a note of its ELF file.

The file is an image's: every number in it is checked before it is used.
Source: elf.h; nvidia-container-stack reference, appendix E.
"""

from __future__ import annotations

from struct import unpack_from

from nvhook.errors import FormatError
from nvhook.formats import json_text
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.formats.elf import Read

SECTION = b".note.cuda.fwd_compatibility"
OWNER = b"NVIDIA Corporation"
MAX_SECTIONS = 1024
MAX_NAMES = 1 << 16
MAX_NOTE = 1 << 16
_HEADER_BYTES = 64
# offset of the section headers, their size and number, and which of them has the names
_SECTIONS = "<40xQ10xHHH"
_SECTION_BYTES = 64
_SHT_NOTE = 7


@record
class CudaNote:
    """``drivers``: the branches (550) of the host's drivers it works with; ``cuda``: ``13.1``."""

    cuda: str
    drivers: tuple[int, ...]


def read_note(read: Read) -> CudaNote | None:
    """Return the note of a 64-bit ELF file, None if it has none; read as in elf.parse_file.

    Raises: FormatError.
    """
    data = _section(read)
    if data is None:
        return None
    if len(data) < 12:
        raise FormatError("the note on CUDA compatibility is too short")
    name_bytes, text_bytes = unpack_from("<II", data)
    start = 12 + (name_bytes + 3) // 4 * 4
    if data[12 : 12 + name_bytes].rstrip(b"\0") != OWNER or start + text_bytes > len(data):
        raise FormatError("the note on CUDA compatibility is not NVIDIA's")
    text = data[start : start + text_bytes].strip(b"\0 \n")
    content = json_text.parse(text, "the note on CUDA compatibility", MAX_NOTE)
    if not isinstance(content, dict):
        raise FormatError("the note on CUDA compatibility is no object")
    cuda, drivers = content.get("CUDA Version", ""), content.get("Driver", [])
    if not isinstance(cuda, str) or not isinstance(drivers, list):
        raise FormatError("the note on CUDA compatibility has odd values")
    branches = tuple([branch for branch in drivers if isinstance(branch, int)])
    if len(branches) != len(drivers):
        raise FormatError("the note on CUDA compatibility has odd drivers")
    return CudaNote(cuda, branches)


def _section(read: Read) -> bytes | None:
    head = read(0, _HEADER_BYTES)
    if len(head) < _HEADER_BYTES or head[:6] != b"\x7fELF\x02\x01":
        raise FormatError("not a little-endian 64-bit ELF file")
    offset, entry_bytes, count, names = unpack_from(_SECTIONS, head)
    if not offset or not count:
        return None
    if entry_bytes != _SECTION_BYTES or count > MAX_SECTIONS or names >= count:
        raise FormatError("the ELF section headers are broken")
    table = _exactly(read, offset, entry_bytes * count)
    # (name, type, offset, size)
    headers = [unpack_from("<II16xQQ", table, entry_bytes * index) for index in range(count)]
    _, _, start, size = headers[names]
    if size > MAX_NAMES:
        raise FormatError("the ELF section names are too long")
    strings = _exactly(read, start, size)
    for name, kind, start, size in headers:
        if kind == _SHT_NOTE and strings[name : name + len(SECTION) + 1] == SECTION + b"\0":
            if size > MAX_NOTE:
                raise FormatError("the note on CUDA compatibility is too long")
            return _exactly(read, start, size)
    return None


def _exactly(read: Read, offset: int, size: int) -> bytes:
    data = read(offset, size) if offset < 1 << 62 else b""
    if len(data) != size:
        raise FormatError("the ELF file is truncated")
    return data
