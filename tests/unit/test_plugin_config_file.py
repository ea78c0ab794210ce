"""The device plugin's file: every published example, and what a mistake is answered with."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import ConfigError
from nvhook.kubelet import config_file
from nvhook.kubelet.config_file import Loaded
from nvhook.kubelet.settings import NameRule, SharedResource, Sharing

DATA = Path(__file__).parents[1] / "data/device_plugin"


def time_slicing(*resources: SharedResource, renames: bool = False, fails: bool = False) -> Sharing:
    return Sharing("time-slicing", resources, renames, fails)


def shared(replicas: int, name: str = "nvidia.com/gpu", **more: object) -> SharedResource:
    return SharedResource(name, replicas, **more)  # type: ignore[arg-type]


EXPECTED: dict[str, dict[str, object]] = {
    "bottlerocket-default.yaml": {
        "mig_strategy": "none",
        "fail_on_init_error": True,
        "pass_device_specs": True,
        "list_strategies": ("volume-mounts",),
        "id_strategy": "index",
    },
    "configmap-literal_block_keep_newline.yaml": {
        "mig_strategy": "none",
        "sharing": time_slicing(shared(4)),
    },
    "configmap-named_slice4_slice10.yaml": {},
    "configmap-single_key_applies_everywhere.yaml": {
        "mig_strategy": "none",
        "sharing": time_slicing(shared(4)),
    },
    "mig-mixed.yaml": {"mig_strategy": "mixed"},
    "mig-timesliced_resources.yaml": {
        "mig_strategy": "mixed",
        "sharing": time_slicing(
            shared(4), shared(2, "nvidia.com/mig-1g.5gb"), shared(2, "nvidia.com/mig-3g.20gb")
        ),
    },
    "mps-basic.yaml": {"sharing": Sharing("mps", (shared(4),), True, True)},
    "mps-with_root.yaml": {
        "mig_strategy": "none",
        "gdrcopy": False,
        "gds": False,
        "mofed": False,
        "mps_root": "/run/nvidia/mps",
        "sharing": Sharing("mps", (shared(10),), False, True),
    },
    "resources-names.yaml": {
        "mig_strategy": "mixed",
        "gpu_names": (
            NameRule("A100-SXM4-40GB", "nvidia.com/a100"),
            NameRule("*", "nvidia.com/gpu"),
        ),
        "mig_names": (
            NameRule("1g.5gb", "nvidia.com/mig-small"),
            NameRule("*", "nvidia.com/mig-other"),
        ),
    },
    "timeslicing-basic.yaml": {"sharing": time_slicing(shared(4), renames=True, fails=True)},
    "timeslicing-flags_misplaced.yaml": {
        "mig_strategy": "none",
        "sharing": time_slicing(shared(16384)),
    },
    "timeslicing-full_flags.yaml": {
        "mig_strategy": "none",
        "fail_on_init_error": False,
        "driver_root": "/",
        "pass_device_specs": False,
        "list_strategies": ("envvar",),
        "id_strategy": "uuid",
        "sharing": time_slicing(shared(4), renames=True),
    },
    "timeslicing-rename_and_devices.yaml": {
        "mig_strategy": "none",
        "sharing": time_slicing(shared(8, rename="nvidia.com/gpu-0", devices=("0",))),
    },
}
WARNED = {
    "configmap-named_slice4_slice10.yaml": [
        "none of its configurations (slice-4, slice-10) applies"
    ],
    "timeslicing-flags_misplaced.yaml": [
        "line 4: flags.renameByDefault has no effect here",
        "line 5: flags.failRequestsGreaterThanOne has no effect here",
    ],
}
REFUSED = {"timeslicing-bad_indent_doc.yaml": "line 3: timeSlicing is not known"}


@pytest.mark.parametrize("name", sorted(os.listdir(DATA)))
def test_a_published_file_is_understood_or_refused_by_key_and_line(name: str) -> None:
    path = str(DATA / name)
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            config_file.load(path)
        return
    loaded = config_file.load(path)
    assert loaded.values == EXPECTED[name]
    wanted = WARNED.get(name, [])
    assert len(loaded.warnings) == len(wanted)
    for warning, words in zip(loaded.warnings, wanted, strict=True):
        assert words in warning
        assert path in warning


def test_a_configuration_of_a_map_is_chosen_by_name() -> None:
    path = str(DATA / "configmap-named_slice4_slice10.yaml")
    loaded = config_file.load(path, "slice-10")
    assert loaded.values == {"sharing": time_slicing(shared(10), renames=True, fails=True)}
    with pytest.raises(ConfigError, match=r"no configuration slice-9 .*it has slice-4, slice-10"):
        config_file.load(path, "slice-9")


@pytest.mark.parametrize(
    ("files", "name", "strategy"),
    [
        ({"any": "single"}, "", "single"),
        ({"a": "single", "default": "mixed"}, "", "mixed"),
        ({"a": "single", "default": "mixed"}, "a", "single"),
        ({"a": "single", "b": "mixed"}, "", None),
        ({}, "", None),
    ],
)
def test_a_mounted_map_is_a_directory(
    tmp_path: Path, files: dict[str, str], name: str, strategy: str | None
) -> None:
    (tmp_path / "..data").mkdir()  # the kubelet's own
    for file, value in files.items():
        (tmp_path / file).write_text(f"version: v1\nflags:\n  migStrategy: {value}\n")
    loaded = config_file.load(str(tmp_path), name)
    assert loaded.values.get("mig_strategy") == strategy
    assert bool(loaded.warnings) == (strategy is None)


def test_a_file_that_is_no_map_has_no_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none that is called a"):
        config_file.load(str(DATA / "mig-mixed.yaml"), "a")
    with pytest.raises(ConfigError, match=r"can't read configuration file .*No such file"):
        config_file.load(str(tmp_path / "missing"))


def test_every_word_that_has_a_meaning() -> None:
    loaded = config_file.parse(
        b"""
version: v1
flags:
  migStrategy: single
  failOnInitError: no
  nvidiaDriverRoot: /d
  nvidiaDevRoot:
  gdrcopyEnabled: true
  gdsEnabled: True
  mofedEnabled: on
  useNodeFeatureAPI: true
  deviceDiscoveryStrategy: nvml
  includeDevices: [0, "A100*"]
  excludeDevices: "3"
  plugin:
    deviceListStrategy: [envvar, cdi-cri]
    cdiAnnotationPrefix: example.com/
    sharedDevicesAllocationPolicy: packed
    containerDriverRoot: /driver
    nvidiaCTKPath: /usr/bin/nvhook
imex:
  channelIDs: [0]
  required: true
sharing:
  timeSlicing:
    resources:
    - {name: gpu, devices: 2, replicas: 3}
    - {name: nvidia.com/gpu, devices: all, replicas: 2}
""",
        "f",
    )
    assert loaded == Loaded(
        {
            "mig_strategy": "single",
            "fail_on_init_error": False,
            "driver_root": "/d",
            "gdrcopy": True,
            "gds": True,
            "mofed": True,
            "include": ("0", "A100*"),
            "exclude": ("3",),
            "list_strategies": ("envvar", "cdi-cri"),
            "cdi_annotation_prefix": "example.com/",
            "shared_policy": "packed",
            "driver_root_here": "/driver",
            "cdi_hook_path": "/usr/bin/nvhook",
            "imex_channels": (0,),
            "imex_required": True,
            "sharing": time_slicing(shared(3, devices=2), shared(2)),
        },
    )


def test_json_is_read_too_and_the_version_may_be_left_out() -> None:
    loaded = config_file.parse(b'{"flags": {"migStrategy": "mixed", "gdsEnabled": false}}', "f")
    assert loaded.values == {"mig_strategy": "mixed", "gds": False}


def test_mps_wins_over_time_slicing_and_forbids_two_unless_told() -> None:
    one = "resources: [{name: nvidia.com/gpu, replicas: 2}]"
    loaded = config_file.parse(
        f"sharing:\n  timeSlicing: {{{one}}}\n  mps: {{{one}}}".encode(), "f"
    )
    assert loaded.values == {"sharing": Sharing("mps", (shared(2),), False, True)}
    assert loaded.warnings == ("f line 2: sharing.timeSlicing has no effect beside sharing.mps",)
    relaxed = f"sharing: {{mps: {{failRequestsGreaterThanOne: false, {one}}}}}".encode()
    sharing = config_file.parse(relaxed, "f").values["sharing"]
    assert isinstance(sharing, Sharing)
    assert not sharing.fail_requests_greater_than_one


LONG_NAME = f"""
sharing:
  timeSlicing:
    renameByDefault: true
    resources: [{{name: {"x" * 46}, replicas: 2}}]
"""
RESOURCE = "sharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: v2", ["f line 1: version 'v2' is not known"]),
        ("- a", ["f line 1: the file must be an object of keys"]),
        ("", ["f is empty"]),
        ("a: [", ["f is not YAML: line"]),
        ("version: v1\nx: 1", ["line 2: x is not known"]),
        ("migStrategy: none", ["migStrategy is not known", "it belongs below flags"]),
        ("flags:\n  migStrategi: none", ["line 2: flags.migStrategi", "did you mean migStrategy?"]),
        ("flags:\n  migStrategy: all", ["line 2: flags.migStrategy must be one of none, single"]),
        ("flags:\n  passDeviceSpecs: true", ["flags.passDeviceSpecs", "below flags.plugin"]),
        ("flags:\n  failOnInitError: 'true'", ["failOnInitError must be true or false"]),
        ("flags:\n  failOnInitError: 1", ["failOnInitError must be true or false"]),
        ("flags:\n  mpsRoot: run", ["flags.mpsRoot must be an absolute path"]),
        ("flags: none", ["line 1: flags must be an object of keys"]),
        (
            "flags:\n  plugin:\n    deviceListStrategy: [envvar, cdi]",
            ["line 3: flags.plugin.deviceListStrategy must be a list of some of envvar"],
        ),
        ("flags:\n  plugin:\n    deviceListStrategy: []", ["deviceListStrategy must be a list"]),
        ("flags:\n  deviceDiscoveryStrategy: tegra", ["must be one of auto, nvml"]),
        ("imex:\n  channelIDs: [1]", ["line 2: imex.channelIDs must be empty, or 0"]),
        ("resources:\n  gpus:\n  - pattern: x", ["line 3: resources.gpus[0] has no name"]),
        ("resources:\n  gpus:\n  - name: x", ["resources.gpus[0] has no pattern"]),
        (
            "resources:\n  gpus:\n  - pattern: x\n    name: example.com/gpu",
            ["line 4: resources.gpus[0].name resource example.com/gpu is not below nvidia.com/"],
        ),
        ("sharing:\n  timeSlicing:\n    renameByDefault: true", ["line 2", "has no resources"]),
        ("sharing:\n  timeSlicing:\n    resources: []", ["line 3", "must be a list of at least"]),
        ("sharing:\n  timeslicing: {}", ["line 2: sharing.timeslicing", "mean timeSlicing?"]),
        (RESOURCE + "replicas: 1", ["line 5: sharing.timeSlicing.resources[0].replicas must be 2"]),
        (RESOURCE + "replicas: four", ["replicas must be a number"]),
        (RESOURCE + "replicas: '4'", ["replicas must be a number"]),
        (RESOURCE + "replicas: -4", ["replicas must be a number"]),
        (RESOURCE + "rename: a", ["line 4", "resources[0] has no replicas"]),
        (RESOURCE + "replica: 4", ["line 5", "resources[0].replica is not known", "replicas"]),
        (RESOURCE + "devices: one\n      replicas: 4", ["devices must be all, how many"]),
        (RESOURCE + "devices: 0\n      replicas: 4", ["devices must be 1 to"]),
        (RESOURCE + "devices: [[]]\n      replicas: 4", ["line 5", "devices[0] must be a text"]),
        (RESOURCE + "rename: GPU\n      replicas: 4", ["line 5", "is no resource name"]),
        (LONG_NAME, ["has 64 characters, at most 63"]),
    ],
)
def test_a_mistake_is_named_with_file_key_and_line(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_file.parse(text.encode(), "f")
    assert [word for word in words if word not in str(caught.value)] == []


def test_lines_are_those_of_the_configuration_in_a_map(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("kind: ConfigMap\ndata:\n  a: |\n    version: v1\n    flags: {x: 1}\n")
    with pytest.raises(ConfigError, match=r"map.yaml data.a line 2: flags.x is not known"):
        config_file.load(str(path))
    path.write_text("kind: ConfigMap\ndata:\n  a: {x: 1}\n")
    with pytest.raises(ConfigError, match=r"map.yaml line 3: data.a must be a text"):
        config_file.load(str(path))
    path.write_text("kind: ConfigMap\n")
    assert config_file.load(str(path)).warnings


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_text_raises_only_config_errors(data: bytes) -> None:
    try:
        config_file.parse(data, "f")
    except ConfigError:
        return
