"""What a first start leaves behind, and what the next of its kind makes of that."""

import os
import time
from pathlib import Path

import pytest

from nvhook import observations
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.runtime.expectations import ALLOWED, DENIED

COMPAT = "/usr/local/cuda/compat"
NOTHING = observations.digest(b"")


def recordings(engine) -> list[Path]:
    found = engine.view.path(Path("/run/nvhook/recordings")).glob("*.[0-9]")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def is_repeated(bundle) -> bool:
    lines = [line for line in bundle.logged().splitlines() if "msg=injected" in line]
    return "replayed=true" in lines[-1]


def share_settings(bundle, first) -> None:
    """Let a bundle's hook have the configuration of another's: they are of one kind then."""
    bundle.settings, bundle.log = first.settings, first.log
    bundle.config["hooks"] = {"prestart": [bundle.hook()]}


def test_the_second_start_of_a_kind_is_repeated(recorded, bundles):
    first, second = bundles(recorded), bundles(recorded)
    share_settings(second, first)
    time.sleep(0.2)  # younger files may change again without a new time stamp
    for bundle in (first, second):
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/probe", "open", "/nodes/nvidia3", "open", "/nodes/nvidia0")

        answers = recorded.start(bundle).answers

        assert answers == {"open /nodes/nvidia3": ALLOWED, "open /nodes/nvidia0": DENIED}
        assert is_repeated(bundle) == (bundle is second)
    assert len(recordings(recorded)) == 1


def test_a_name_in_an_image_is_no_line_of_a_recording(recorded, bundles):
    """A line break and a tab in it would make it a look that holds, and a rule for all devices."""
    name = f"libx.so\t\t{NOTHING}\nrule\tc\t*\t*\trwm\nsplice\tx\t350\n"
    made = []
    for _ in range(2):
        bundle = bundles(recorded)
        made.append(bundle)
        share_settings(bundle, made[0])
        image = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "the image's")
        bundle.put(f"{COMPAT}/libcuda.so.590.44.01", image)
        bundle.link(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")
        bundle.put(f"{COMPAT}/libx.so", image)
        bundle.put(f"{COMPAT}/{name}", image)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/probe", "open", "/nodes/nvidia3", "open", "/nodes/nvidia0")
        time.sleep(0.2)

        answers = recorded.start(bundle).answers

        assert answers == {"open /nodes/nvidia3": ALLOWED, "open /nodes/nvidia0": DENIED}
        assert recordings(recorded) == []


@pytest.mark.parametrize("path", ["/etc/ld.so.cache", f"{COMPAT}/libcuda.so.590.44.01"])
def test_a_file_that_leads_into_procfs_is_not_read(recorded, bundles, path):
    """Reading this one waits for ever, and takes from the host's log."""
    first, second = bundles(recorded), bundles(recorded)
    share_settings(second, first)
    image = shared_library(ABIS[os.uname().machine], "libcuda.so.1", "the image's")
    for bundle in (first, second):
        bundle.put(f"{COMPAT}/libcuda.so.590.44.01", image)
        bundle.link(f"{COMPAT}/libcuda.so.1", "libcuda.so.590.44.01")
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    time.sleep(0.2)
    recorded.start(first)
    assert len(recordings(recorded)) == 1
    (second.seen_root / path[1:]).unlink(missing_ok=True)
    second.link(path, "/proc/kmsg")

    if path == "/etc/ld.so.cache":
        assert "leads into procfs" in recorded.fail(second)
    else:
        recorded.start(second)
        assert not is_repeated(second)


def test_what_is_masked_already_is_not_masked_again(recorded, bundles):
    """By a second hook of the same container; the first one's work is repeated."""
    first, second = bundles(recorded), bundles(recorded)
    for bundle in (first, second):
        share_settings(bundle, first)
        bundle.show_proc_driver()
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        bundle.args("/bin/grep", "-c", " /proc/driver/nvidia ", "/proc/self/mountinfo")
    second.config["hooks"]["prestart"].append(second.hook())
    time.sleep(0.2)

    assert [recorded.start(bundle).stdout for bundle in (first, second)] == ["1\n", "1\n"]
    ways = [line for line in second.logged().splitlines() if "msg=injected" in line]
    assert ["replayed=true" in line for line in ways] == [False, True, False]
