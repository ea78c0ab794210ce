"""How the directories of injected libraries are spelled in an image's loader cache."""

import os
from pathlib import Path

import pytest

from nvhook.core.edits import CachedLibrary
from nvhook.create import loader_cache
from nvhook.formats import ldcache
from nvhook.formats.ldcache_splice import splice
from nvhook.kernel.root import Root

DIRECTORY = "/usr/lib/x86_64-linux-gnu"
ALIAS = DIRECTORY.removeprefix("/usr")
FLAGS = 0x0303


def paths_in(root: Path) -> dict[str, str]:
    entries = ldcache.parse((root / "etc/ld.so.cache").read_bytes()).entries
    return {entry.name: entry.path for entry in entries}


@pytest.mark.parametrize("merged", [True, False], ids=["merged-usr", "two-directories"])
@pytest.mark.parametrize("said", [ALIAS, DIRECTORY, "/opt"])
def test_a_directory_keeps_the_name_it_has_only_where_both_names_lead_to_it(tmp_path, merged, said):
    """Debian before 12 may have two: a library that is mounted in one is not in the other."""
    (tmp_path / DIRECTORY[1:]).mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    if merged:
        (tmp_path / "lib").symlink_to("usr/lib")
    else:
        (tmp_path / ALIAS[1:]).mkdir(parents=True)
    cache = splice(b"", [("libc.so.6", f"{said}/libc.so.6", FLAGS)])
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    rootfs = Root(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    library = CachedLibrary("libcuda.so.1", f"{DIRECTORY}/libcuda.so.1", FLAGS)
    try:
        loader_cache.update(rootfs, (library,), "x86_64")
    finally:
        rootfs.close()

    expected = ALIAS if merged and said == ALIAS else DIRECTORY
    assert paths_in(tmp_path) == {
        "libc.so.6": f"{said}/libc.so.6",
        "libcuda.so.1": f"{expected}/libcuda.so.1",
    }
