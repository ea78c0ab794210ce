"""nvhook config import: NVIDIA's configuration as nvhook's, and what has no equivalent."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from nvhook import config, state
from nvhook.cli.config import command
from nvhook.engines.nvidia_config import translate
from nvhook.errors import ConfigError

SAMPLES = Path(__file__).parents[1] / "data" / "engines" / "nvidia_config"
LOG = "/var/log/nvidia-container-runtime.log"
RESULTS: dict[str, tuple[dict[str, object], list[str]]] = {
    "config-1.11-driver_container_root.toml": (
        {
            "disable-require": False,
            "driver-root": "/run/nvidia/driver",
            "log-level": "info",
            "handler.runtimes": ["docker-runc", "runc"],
        },
        ["environment", "load-kmods", "ldconfig", "mode", "mount-spec-path"],
    ),
    "config-1.8-opensuse-user_root.toml": (
        {"disable-require": False, "device-rules": True, "log-path": LOG},
        ["environment", "load-kmods", "user", "ldconfig"],
    ),
    "config-crio_absolute_runtimes.toml": (
        {"handler.runtimes": ["/usr/libexec/crio/crun", "/usr/libexec/crio/runc", "crun", "runc"]},
        ["mode"],
    ),
    "config-jetson-switchover.toml": (
        {"disable-require": False, "device-rules": True, "log-path": LOG, "log-level": "info"},
        [
            *("switchover-file", "environment", "ldcache", "ldconfig", "load-kmods", "user"),
            *("mode", "mount-spec-path"),
        ],
    ),
    "config-legacy-runc_crun.toml": (
        {"log-level": "info", "handler.runtimes": ["runc", "crun"]},
        ["mode"],
    ),
}


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_sample_of_a_real_host(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    values, keys = RESULTS[name]
    found, notes = translate((SAMPLES / name).read_text(), name)
    assert found == values
    assert [note.split(":")[0].split(" ")[0].rpartition(".")[2] for note in notes] == keys
    target = tmp_path / "config.toml"
    result = run(str(SAMPLES / name), "--output", str(target))
    assert (result.exit_code, result.stdout) == (0, "")
    assert config.explicit_values(str(target)).keys() == {
        key.replace("-", "_").replace(".", "_") for key in values
    }


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["import", *arguments])


@pytest.mark.parametrize(
    ("text", "values", "note"),
    [
        ("accept-nvidia-visible-devices-as-volume-mounts = true", "accept-volume-mounts", ""),
        ('swarm-resource = "DOCKER_RESOURCE_A, DOCKER_RESOURCE_B"', "swarm-resource", ""),
        ('swarm-resource = "GPU"', "", "GPU left out"),
        ('supported-driver-capabilities = "compute,utility"', "supported-driver-capabilities", ""),
        ("[nvidia-container-cli]\nno-cgroups = true", "device-rules", ""),
        ('[nvidia-container-runtime]\ndebug = "/dev/null"', "", ""),
        ('[nvidia-container-runtime]\nlog-level = "trace"', "log-level", ""),
        ('[nvidia-container-runtime]\nmode = "csv"', "", "nvhook sees what machine"),
        ('[nvidia-container-runtime]\nmode = "new"', "", "no equivalent"),
        (
            '[nvidia-container-cli]\ndebug = "/a"\n[nvidia-container-runtime]\ndebug = "/b"',
            "log-path",
            "the one before it is left out",
        ),
        (
            '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "disabled"',
            "cuda-forward-compatibility",
            "",
        ),
        (
            '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "mount"',
            "",
            "mounts nothing of an image",
        ),
        ("[features]\ndisable-cuda-compat-lib-hook = true", "cuda-forward-compatibility", ""),
        ("[features]\nnew = 1", "", "features.new = '1': no equivalent, left out"),
    ],
)
def test_a_key(text: str, values: str, note: str) -> None:
    found, notes = translate(text, "x")
    assert ",".join(found) == values
    assert (note in " ".join(notes)) if note else not notes


def test_values_are_translated() -> None:
    text = """
swarm-resource = "DOCKER_RESOURCE_A, DOCKER_RESOURCE_B"
[nvidia-container-cli]
no-cgroups = true
[nvidia-container-runtime]
log-level = "trace"
[features]
disable-cuda-compat-lib-hook = true
"""
    assert translate(text, "x")[0] == {
        "swarm-resource": ["DOCKER_RESOURCE_A", "DOCKER_RESOURCE_B"],
        "device-rules": False,
        "log-level": "debug",
        "cuda-forward-compatibility": False,
    }


def test_the_command_prints_a_file_and_says_what_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "nvidia.toml"
    source.write_text('disable-require = true\n[nvidia-container-cli]\nuser = "root:video"\n')
    result = run(str(source))
    assert result.exit_code == 0
    assert result.stdout == (
        f"# Translated by nvhook config import from {source}\ndisable-require = true\n"
    )
    assert result.stderr.startswith("nvhook: nvidia-container-cli.user: not needed, ")


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "nvidia.toml", tmp_path / "config.toml"
    source.write_text("disable-require = true\n")
    target.write_text("precious")
    result = run(str(source), "--output", str(target))
    assert isinstance(result.exception, ConfigError)
    assert target.read_text() == "precious"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("= no", "is not TOML"),
        ("disable-require = 1", "disable-require has a value of the wrong type: '1'"),
        ('[nvidia-container-runtime]\nruntimes = "runc"', "runtimes has a value of the wrong type"),
        ('[nvidia-container-cli]\nroot = "relative"', "driver-root must be an absolute path"),
        ('supported-driver-capabilities = "warp"', "supported-driver-capabilities must be a list"),
    ],
)
def test_what_can_not_be_translated_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    source = tmp_path / "nvidia.toml"
    source.write_text(text)
    error = run(str(source)).exception
    assert isinstance(error, ConfigError)
    assert why in str(error)


@given(st.text())
def test_arbitrary_text_raises_only_configuration_errors(text: str) -> None:
    try:
        translate(text, "x")
    except ConfigError:
        pass
