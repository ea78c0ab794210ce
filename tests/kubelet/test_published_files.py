"""Every configuration file in tests/data/device_plugin, from the file to the kubelet's counts."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubelet.plugin import Plugin, until
from tests.kubelet.scripted import ScriptedKubelet

Machine = Callable[..., Path]
Start = Callable[..., Plugin]
DATA = Path(__file__).parents[1] / "data/device_plugin"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
WITHOUT_MPS = "--mps-root="

# file -> (flags, what two GPUs are counted as, the second of them partitioned)
COUNTS: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "bottlerocket-default.yaml": ((), {GPU: 2}),
    "configmap-literal_block_keep_newline.yaml": ((), {GPU: 8}),
    "configmap-named_slice4_slice10.yaml": (("--config-name=slice-10",), {SHARED: 20}),
    "configmap-single_key_applies_everywhere.yaml": ((), {GPU: 8}),
    "mig-mixed.yaml": ((), {GPU: 1, "nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-3g.20gb": 1}),
    "mig-timesliced_resources.yaml": (
        (),
        {GPU: 4, "nvidia.com/mig-1g.5gb": 4, "nvidia.com/mig-3g.20gb": 2},
    ),
    "mps-basic.yaml": ((), {SHARED: 8}),
    "mps-with_root.yaml": ((), {GPU: 20}),
    "resources-names.yaml": (
        (),
        {"nvidia.com/a100": 1, "nvidia.com/mig-small": 2, "nvidia.com/mig-other": 1},
    ),
    "timeslicing-basic.yaml": ((), {SHARED: 8}),
    "timeslicing-flags_misplaced.yaml": ((), {GPU: 32768}),
    "timeslicing-full_flags.yaml": ((), {SHARED: 8}),
    "timeslicing-rename_and_devices.yaml": ((), {"nvidia.com/gpu-0": 8, GPU: 1}),
}
REFUSED = {
    "timeslicing-bad_indent_doc.yaml": ("line 3: timeSlicing is not known", ()),
    "mps-basic.yaml": ("MPS needs a directory on the host", (WITHOUT_MPS,)),
}


@pytest.fixture
def two(machine: Machine) -> Path:
    """Two GPUs, the second of them partitioned."""
    profiles = ("1g.5gb", "1g.5gb", "3g.20gb")
    return machine(gpus=2, model="NVIDIA A100-SXM4-40GB", mig=profiles, mig_gpus=[1])


def test_there_is_an_expectation_for_every_file() -> None:
    assert {path.name for path in DATA.iterdir()} == COUNTS.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_a_published_file_becomes_what_the_kubelet_counts(
    kubelet: ScriptedKubelet, two: Path, plugin: Start, short_directory: Path, name: str
) -> None:
    flags, counts = COUNTS[name]
    # A flag counts before the file: nothing of a test is on this machine.
    root = f"--mps-root={short_directory}/mps"
    plugin(two, f"--config-file={DATA / name}", root, *flags)
    for resource in counts:
        kubelet.wait_for_list(resource)
    found = {resource: kubelet.capacity(resource) for resource in kubelet.endpoints}
    assert found == counts


@pytest.mark.parametrize("name", REFUSED)
def test_a_published_file_that_is_wrong_ends_the_plugin_with_the_reason(
    kubelet: ScriptedKubelet, two: Path, name: str
) -> None:
    words, flags = REFUSED[name]
    refused = Plugin(two, kubelet.socket, f"--config-file={DATA / name}", *flags)
    assert refused.wait(20) == 1
    (line,) = refused.noise
    assert words in line
    assert not kubelet.registrations


def test_what_is_said_in_vain_is_logged_once(
    kubelet: ScriptedKubelet, two: Path, plugin: Start
) -> None:
    running = plugin(
        two, f"--config-file={DATA / 'configmap-named_slice4_slice10.yaml'}", "--exclude-devices=9"
    )
    kubelet.wait_for_list()
    assert kubelet.capacity() == 2
    running.wait_for_log("none of its configurations (slice-4, slice-10) applies")
    running.wait_for_log("exclude: no device is 9")

    def scans() -> float:
        return running.metric("nvhook_scan_seconds_count", outcome="ok") or 0

    before = scans()
    running.send(signal.SIGHUP)
    until(lambda: scans() > before, 10)
    lines = [line["msg"] for line in running.log if "exclude: no device" in line["msg"]]
    assert len(lines) == 1
