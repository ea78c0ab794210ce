"""What is read of an open file: all of it, or as much as the limit says."""

import os
from pathlib import Path

import pytest

from nvhook.kernel.descriptors import content

DATA = bytes(range(256)) * 1000  # more than is read at once


@pytest.mark.parametrize("limit", [0, 1, 65536, 65537, len(DATA) - 1, len(DATA), len(DATA) + 1])
def test_a_file_is_read_up_to_the_limit(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert content(fd, limit) == DATA[:limit]
    finally:
        os.close(fd)


def test_a_pipe_that_gives_little_at_a_time_is_read_to_its_end() -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # every write is a read of its own
    try:
        for piece in (b"one", b"two", b"three"):
            os.write(writer, piece)
        os.close(writer)
        assert content(reader, 1 << 20) == b"onetwothree"
    finally:
        os.close(reader)
