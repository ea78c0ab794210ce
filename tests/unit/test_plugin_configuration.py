"""Flags before variables before the file, and what only all of them together can say."""

import math
from pathlib import Path

import pytest

from nvhook.cli import node_labels
from nvhook.cli.device_plugin import command
from nvhook.errors import ConfigError
from nvhook.kubelet.configuration import ALL_XIDS, Given, ignored_xids, read, read_labels
from nvhook.kubelet.options import DURATION
from nvhook.kubelet.settings import (
    APPLICATION_XIDS,
    LABEL_OPTIONS,
    OPTIONS,
    LabelSettings,
    Settings,
)

MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


def settings(
    tmp_path: Path, file: str = "", flags: dict[str, str] | None = None, **variables: str
) -> Settings:
    path = tmp_path / "plugin.yaml"
    path.write_text(file or "version: v1\n")
    return read(Given(flags or {}, str(path)), variables, lambda _path: False)[0]


def test_without_anything_said_all_is_at_its_default() -> None:
    assert read(Given({}), {}, lambda _path: False) == (Settings(), ())


def test_a_flag_counts_before_its_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = "flags: {migStrategy: single, gdsEnabled: true, mpsRoot: /file}"
    flags = {"--mig-strategy": "mixed", "--mps-root": ""}
    found = settings(tmp_path, file, flags, MIG_STRATEGY="none", GDS_ENABLED="0", MPS_ROOT="/x")
    assert (found.mig_strategy, found.gds, found.mps_root) == ("mixed", False, "")


def test_a_variable_that_is_set_to_nothing_says_nothing(tmp_path: Path) -> None:
    assert settings(tmp_path, "flags: {gdsEnabled: true}", GDS_ENABLED="").gds


@pytest.mark.parametrize(
    ("variable", "field", "value"),
    [
        ("MIG_STRATEGY=single", "mig_strategy", "single"),
        ("FAIL_ON_INIT_ERROR=false", "fail_on_init_error", False),
        ("NVIDIA_DRIVER_ROOT=/d", "driver_root", "/d"),
        ("NVIDIA_DEV_ROOT=/d", "dev_root", "/d"),
        ("PASS_DEVICE_SPECS=t", "pass_device_specs", True),
        ("DEVICE_LIST_STRATEGY=envvar, cdi-cri", "list_strategies", ("envvar", "cdi-cri")),
        ("DEVICE_ID_STRATEGY=index", "id_strategy", "index"),
        ("GDRCOPY_ENABLED=1", "gdrcopy", True),
        ("MOFED_ENABLED=TRUE", "mofed", True),
        ("CDI_ANNOTATION_PREFIX=x/", "cdi_annotation_prefix", "x/"),
        ("NVIDIA_CDI_HOOK_PATH=/a/nvhook", "cdi_hook_path", "/a/nvhook"),
        ("NVIDIA_CTK_PATH=/a/nvhook", "cdi_hook_path", "/a/nvhook"),
        ("CONTAINER_DRIVER_ROOT=/c", "driver_root_here", "/c"),
        ("DRIVER_ROOT_CTR_PATH=/c", "driver_root_here", "/c"),
        ("MPS_ROOT=/m", "mps_root", "/m"),
        ("SHARED_DEVICES_ALLOCATION_POLICY=packed", "shared_policy", "packed"),
        ("IMEX_CHANNEL_IDS=0", "imex_channels", (0,)),
        ("IMEX_REQUIRED=true", "imex_required", True),
        ("KUBELET_SOCKET=/k.sock", "kubelet_socket", "/k.sock"),
        ("INCLUDE_DEVICES=0,A100*", "include", ("0", "A100*")),
        ("EXCLUDE_DEVICES=0000:07:00.0", "exclude", ("0000:07:00.0",)),
        ("METRICS_ADDRESS=:9400", "metrics_address", ":9400"),
        ("DEVICE_DISCOVERY_STRATEGY=nvml", "mig_strategy", "none"),
    ],
)
def test_every_variable(tmp_path: Path, variable: str, field: str, value: object) -> None:
    name, _, text = variable.partition("=")
    assert getattr(settings(tmp_path, **{name: text}), field) == value


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ({"--gds-enabled": "yes"}, {}, "--gds-enabled must be true or false, not 'yes'"),
        ({}, {"MIG_STRATEGY": "x"}, "MIG_STRATEGY must be one of none, single, mixed, not 'x'"),
        ({"--imex-channel-ids": "0,1"}, {}, "--imex-channel-ids must be empty, or 0"),
        ({"--device-list-strategy": ""}, {}, "--device-list-strategy must be a list of some"),
        ({"--driver-root": "x"}, {}, "--driver-root must be an absolute path"),
        ({"--metrics-address": "x"}, {}, "--metrics-address must be HOST:PORT, or :PORT"),
        ({}, {"METRICS_ADDRESS": ":65536"}, "METRICS_ADDRESS must be HOST:PORT, or :PORT"),
        ({"--device-discovery-strategy": "tegra"}, {}, "must be one of auto, nvml, not 'tegra'"),
    ],
)
def test_a_bad_value_names_who_said_it(
    tmp_path: Path, flags: dict[str, str], variables: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, "", flags, **variables)
    assert words in str(caught.value)


def test_mps_needs_its_root_from_anyone_and_no_mixed_mig(tmp_path: Path) -> None:
    assert settings(tmp_path, MPS, MPS_ROOT="/run/nvidia/mps").mps_root == "/run/nvidia/mps"
    with pytest.raises(ConfigError, match=r"MPS needs a directory .*--mps-root, MPS_ROOT or flags"):
        settings(tmp_path, MPS)
    with pytest.raises(ConfigError, match="MPS does not go with MIG strategy mixed"):
        settings(tmp_path, MPS, MPS_ROOT="/m", MIG_STRATEGY="mixed")


def test_nvidias_own_hook_is_not_called_by_our_specs() -> None:
    found, warnings = read(Given({}), {"NVIDIA_CTK_PATH": "/usr/bin/nvidia-ctk"})
    assert found.cdi_hook_path == ""
    assert warnings == ("/usr/bin/nvidia-ctk is not used: nvhook's specs call nvhook's hook",)


@pytest.mark.parametrize(
    ("flags", "mounted", "here"),
    [
        ({}, False, ""),
        ({}, True, "/driver-root"),
        ({"--driver-root": "/run/nvidia/driver"}, False, "/run/nvidia/driver"),
        ({"--driver-root": "/run/nvidia/driver"}, True, "/driver-root"),
        ({"--driver-root-ctr-path": "/c"}, True, "/c"),
    ],
)
def test_the_driver_is_looked_for_where_manifests_mount_it(
    flags: dict[str, str], mounted: bool, here: str
) -> None:
    found, _ = read(Given(flags), {}, lambda path: mounted and path == "/driver-root")
    assert found.driver_root_here == here


def test_the_hook_of_specs_gets_the_configuration_of_a_plugin_that_is_no_container() -> None:
    own = Given({}, own="/etc/nvhook.toml")
    assert read(own, {}, lambda _path: False)[0].hook_config == "/etc/nvhook.toml"
    assert read(own, {}, lambda _path: True)[0].hook_config == ""


@pytest.mark.parametrize(
    ("disable", "enable", "expected", "count"),
    [
        ("", "", APPLICATION_XIDS, 0),
        ("79, 62", "", APPLICATION_XIDS | {79, 62}, 0),
        ("all", "", None, 0),
        ("xids", "", None, 0),
        ("XIDS,13", "", None, 0),
        ("", "13", APPLICATION_XIDS - {13}, 0),
        ("", "all", frozenset(), 0),
        ("all", "79", ALL_XIDS - {79}, 0),  # ignored by NVIDIA's plugin, against its own word
        ("all", "all", frozenset(), 0),
        ("48", "48", APPLICATION_XIDS, 0),
        ("x, 48", "-1", APPLICATION_XIDS | {48}, 2),
    ],
)
def test_which_xids_count(
    disable: str, enable: str, expected: frozenset[int] | None, count: int
) -> None:
    warnings: list[str] = []
    variables = {"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable}
    assert ignored_xids(variables, warnings) == expected
    assert len(warnings) == count


def test_every_option_is_a_flag_of_the_command_and_a_field_of_the_settings() -> None:
    flags = {name for param in command.params for name in param.opts}
    assert {name for option in OPTIONS for name in option.flags} <= flags
    assert {option.attribute for option in OPTIONS if option.attribute} <= {*Settings.__slots__}
    assert len({option.key for option in OPTIONS if option.key}) == len(
        [option for option in OPTIONS if option.key]
    )


def test_every_option_of_labels_is_a_flag_and_a_field() -> None:
    flags = {name for param in node_labels.command.params for name in param.opts}
    assert {name for option in LABEL_OPTIONS for name in option.flags} <= flags
    assert {option.attribute for option in LABEL_OPTIONS} == {*LabelSettings.__slots__}


def test_labels_are_configured_as_the_plugin_is(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text("flags: {migStrategy: mixed, gfd: {oneshot: true, sleepInterval: 1m30s}}")
    found = read_labels(Given({"--output": "-"}, str(path)), {"GFD_NO_TIMESTAMP": "TRUE"})
    assert found == LabelSettings("-", True, 90.0, True)
    assert read(Given({}, str(path)), {})[0].mig_strategy == "mixed"
    with pytest.raises(ConfigError, match=r"--interval must be 60s, 1h30m, a number of seconds"):
        read_labels(Given({"--interval": "soon"}), {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("1h30m", 5400),
        ("1m30s", 90),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("10", 10),
        ("infinite", math.inf),
        ("", None),
        ("-1s", None),
        ("1d", None),
        ("s", None),
        ("1s1", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert DURATION.of_text(text) == seconds


def test_the_manual_has_every_option() -> None:
    text = (Path(__file__).parents[2] / "docs/device-plugin.md").read_text()
    for option in OPTIONS + LABEL_OPTIONS:
        for name in (*option.flags, *option.variables, option.key):
            assert f"`{name}`" in text or not name
