"""Kernel modules of one version, libraries of another: an update without a reboot."""

from typing import Any

import pytest

from nvhook.errors import HostError
from nvhook.host.libraries import find_libraries

DIRECTORY = "/usr/lib/x86_64-linux-gnu"


def test_library_with_a_version_of_its_own_does_not_hide_the_mismatch(host: Any) -> None:
    host.library(f"{DIRECTORY}/libcuda.so.535.161.08", "libcuda.so.1")
    host.library(f"{DIRECTORY}/libnvidia-nscq.so.2.0", "libnvidia-nscq.so.2")
    with pytest.raises(HostError, match=r"550\.54\.15.*libcuda\.so 535\.161\.08"):
        find_libraries(str(host.root), "550.54.15", "x86_64")


def test_files_of_an_older_version_beside_the_right_ones_are_no_mismatch(host: Any) -> None:
    host.library(f"{DIRECTORY}/libcuda.so.535.161.08", "libcuda.so.1")
    host.library(f"{DIRECTORY}/libcuda.so.550.54.15", "libcuda.so.1")
    (found,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert found.path == f"{DIRECTORY}/libcuda.so.550.54.15"
