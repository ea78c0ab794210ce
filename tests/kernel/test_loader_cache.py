"""musl's path file and glibc's loader cache: each has what its loader needs."""

import os

import pytest

from nvhook.core.edits import CachedLibrary
from nvhook.create import loader_cache
from nvhook.errors import FormatError
from nvhook.kernel.root import Root

pytestmark = pytest.mark.root


def test_musls_path_is_extended_where_the_cache_is_not_understood(tmp_path, root_host):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"nothing known" * 9)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/ld-musl-x86_64.so.1").touch()
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    library = CachedLibrary("libcuda.so.1", "/usr/lib64/libcuda.so.550.54.14", 0x303)

    with pytest.raises(FormatError):
        loader_cache.update(rootfs, (library,), "x86_64")
    rootfs.close()

    assert (tmp_path / "etc/ld-musl-x86_64.path").read_text().endswith(":/usr/lib64\n")
