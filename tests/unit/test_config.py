"""nvhook's configuration file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nvhook
from nvhook import config, state
from nvhook.config import SETTINGS, Config
from nvhook.core.catalog import CAPABILITIES
from nvhook.errors import ConfigError
from nvhook.settings import FILE, PATH


@pytest.fixture(autouse=True)
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the machine's own configuration and cache out of the tests."""
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(config, "DEFAULT_PATH", str(tmp_path / "etc/config.toml"))
    return tmp_path / "run"


def write(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_defaults() -> None:
    assert config.load() == Config()
    defaults = Config()
    assert (defaults.driver_root, defaults.dev_root) == ("/", "/dev")
    assert (defaults.proc_root, defaults.sys_root) == ("/proc", "/sys")
    assert defaults.state_directory == "/run/nvhook"
    assert (defaults.log_path, defaults.log_level) == ("/var/log/nvhook.log", "info")
    assert defaults.accept_envvar_when_unprivileged
    assert not defaults.accept_volume_mounts
    assert defaults.supported_driver_capabilities == CAPABILITIES
    assert defaults.swarm_resource == ()
    assert defaults.device_rules


def test_table_and_attributes_agree() -> None:
    assert sorted(Config.__annotations__) == sorted(setting.attribute for setting in SETTINGS)
    assert all(setting.doc for setting in SETTINGS)


def test_only_the_default_file_may_be_absent(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=f"configuration file {missing} does not exist"):
        config.load(missing)
    Path(config.DEFAULT_PATH).parent.mkdir()
    Path(config.DEFAULT_PATH).write_text('driver-root = "/run/driver"')
    assert config.load().driver_root == "/run/driver"


def test_every_setting_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
driver-root = "/d/"
dev-root = "/d/dev"
proc-root = "/d/proc"
sys-root = "/"
state-directory = "/d//"
log-path = ""
log-level = "debug"
accept-envvar-when-unprivileged = false
accept-volume-mounts = true
supported-driver-capabilities = ["utility", "compute"]
swarm-resource = ["DOCKER_RESOURCE_B", "DOCKER_RESOURCE_A"]
device-rules = false
recordings = false
accept-cdi-annotations = false
handler.runtimes = ["/opt/crun"]
handler.mounts = "spec"
cdi-spec-directories = ["/a/", "/b"]
disable-require = true
cuda-forward-compatibility = false
inject-unlisted-driver-libraries = false
""",
    )
    expected = Config(
        driver_root="/d",
        dev_root="/d/dev",
        proc_root="/d/proc",
        sys_root="/",
        state_directory="/d",
        log_path="",
        log_level="debug",
        accept_envvar_when_unprivileged=False,
        accept_volume_mounts=True,
        supported_driver_capabilities=("compute", "utility"),
        swarm_resource=("DOCKER_RESOURCE_B", "DOCKER_RESOURCE_A"),
        device_rules=False,
        recordings=False,
        accept_cdi_annotations=False,
        handler_runtimes=("/opt/crun",),
        handler_mounts="spec",
        cdi_spec_directories=("/a", "/b"),
        disable_require=True,
        cuda_forward_compatibility=False,
        inject_unlisted_driver_libraries=False,
    )
    assert config.load(path) == expected
    assert len(config.explicit_values(path)) == len(SETTINGS)


def test_a_dot_in_a_key_may_be_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, 'device-rules = false\n[handler]\nruntimes = ["crun"]\nmounts = "spec"')
    assert config.load(path) == Config(
        device_rules=False, handler_runtimes=("crun",), handler_mounts="spec"
    )


def test_all_capabilities(tmp_path: Path) -> None:
    path = write(tmp_path, 'supported-driver-capabilities = ["all"]')
    assert config.load(path).supported_driver_capabilities == CAPABILITIES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nacept-volume-mounts = true", ["line 2", "did you mean accept-volume-mounts?"]),
        ("x = 1", ["line 1: unknown key x", "known keys: driver-root, dev-root"]),
        ("\n\n[nvidia-container-cli]\nroot = '/'", ["line 3: unknown key nvidia-container-cli"]),
        ("a.b = 1", ["line 1: unknown key a"]),
        ('"driver root" = 1', ["line 1: unknown key driver root", "did you mean driver-root?"]),
        ("# x\ndevice-rules = 1", ["line 2: device-rules must be true or false"]),
        ("device-rules = 'true'", ["device-rules must be true or false"]),
        ("driver-root = 'd'", ["driver-root must be an absolute path"]),
        ("driver-root = ''", ["driver-root must be an absolute path"]),
        ("driver-root = ['/']", ["driver-root must be an absolute path"]),
        ('driver-root = "/a\\u0000"', ["driver-root must be an absolute path"]),
        ("log-path = 'x'", ["log-path must be an absolute path, or empty"]),
        ("log-level = 'loud'", ["log-level must be one of debug, info, warning, error"]),
        ("log-level = []", ["log-level must be one of"]),
        ("swarm-resource = 'A'", ["swarm-resource must be a list of names"]),
        ("swarm-resource = ['GPU']", ["names that begin with DOCKER_RESOURCE"]),
        ("swarm-resource = [1]", ["swarm-resource must be a list of names"]),
        ("supported-driver-capabilities = ['gl']", ["must be a list of some of all, compat32"]),
        ("[handler]\nmounts = 'both'", ["line 2: handler.mounts must be hook or spec"]),
        ("\nhandler.mounts = 1", ["line 2: handler.mounts must be hook or spec"]),
        ("[handler]\nx = 1", ["line 2: unknown key handler.x"]),
        ("handler = 1", ["line 1: unknown key handler"]),
        ("cdi-spec-directories = ['etc/cdi']", ["must be a list of absolute paths"]),
        ("handler.runtimes = []", ["handler.runtimes must be a list of at least one name"]),
        ("handler.runtimes = ['']", ["handler.runtimes must be a list of at least one name"]),
        ("device-rules =", ["line 1"]),
        ("device-rules = true\ndevice-rules = true", ["line 2"]),
        (b"\n\xff", ["line 2: not UTF-8"]),
        ("x = " + "[" * 100_000, ["nested too deeply"]),
        (b"#" * ((1 << 20) + 1), ["is larger than 1048576 bytes"]),
    ],
)
def test_mistakes_are_named_with_their_line(
    tmp_path: Path, state_directory: Path, text: str | bytes, words: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    line = str(caught.value)
    assert path in line
    assert [word for word in words if word not in line] == []
    assert not state_directory.exists()


def test_directory_and_bad_names_are_errors(tmp_path: Path) -> None:
    for name in (str(tmp_path), "a\0b", str(tmp_path / ("x" * 300))):
        with pytest.raises(ConfigError):
            config.load(name)


def settled(tmp_path: Path, text: str) -> str:
    """Write a file that is old enough for the cache: its time stamp would show a change."""
    path = write(tmp_path, text)
    time.sleep(0.15)
    return path


def cache_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*")) if directory.exists() else []


def test_remembered_values_spare_the_parser(tmp_path: Path, state_directory: Path) -> None:
    path = settled(tmp_path, 'driver-root = "/d"\nswarm-resource = ["DOCKER_RESOURCE_A"]')
    first = config.load(path)
    (cache,) = cache_files(state_directory)
    status = os.stat(path)
    assert cache.name == f"config-{status.st_dev}-{status.st_ino}.json"
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from nvhook import config
from nvhook import state
state.DIRECTORY = sys.argv[2]
loaded = config.load(sys.argv[3])
print(loaded.driver_root, loaded.swarm_resource, sorted({"tomllib", "re", "json"} & {*sys.modules}))
"""
    root = nvhook.__file__.rpartition("/nvhook/")[0]
    command = [sys.executable, "-I", "-S", "-c", script, root, str(state_directory), path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "/d ('DOCKER_RESOURCE_A',) []\n"
    assert first == Config(driver_root="/d", swarm_resource=("DOCKER_RESOURCE_A",))


def test_changed_file_is_read_again(tmp_path: Path, state_directory: Path) -> None:
    path = settled(tmp_path, 'driver-root = "/a"')
    assert config.load(path).driver_root == "/a"
    assert cache_files(state_directory)
    with open(path, "r+") as stream:  # the same inode and size
        stream.write('driver-root = "/b"')
    assert config.load(path).driver_root == "/b"
    time.sleep(0.15)
    assert config.load(path).driver_root == "/b"
    os.utime(path, (0, 0))
    assert config.load(path).driver_root == "/b"


def test_fresh_file_is_not_remembered(tmp_path: Path, state_directory: Path) -> None:
    path = write(tmp_path, "device-rules = false")
    os.utime(path)
    assert not config.load(path).device_rules
    assert cache_files(state_directory) == []


@pytest.mark.parametrize("damage", ["foreign", "writable", "link", "garbage", "other", "values"])
def test_cache_that_can_not_be_trusted_is_ignored_and_rewritten(
    tmp_path: Path, state_directory: Path, damage: str, require
) -> None:  # type: ignore[no-untyped-def]
    require(os.geteuid() == 0 or damage != "foreign", "needs root to give a file away")
    path = settled(tmp_path, 'driver-root = "/d"')
    config.load(path)
    (cache,) = cache_files(state_directory)
    good = cache.read_bytes()
    evil = json.loads(good)
    evil["values"]["driver-root"] = "/evil"
    bad = json.dumps(evil).encode()
    if damage == "other":
        evil["key"][0] = "/another/file"
        bad = json.dumps(evil).encode()
    elif damage == "values":
        evil["values"] = {"driver-root": 7}
        bad = json.dumps(evil).encode()
    elif damage == "garbage":
        bad = good[:-9]
    cache.write_bytes(bad)
    if damage == "foreign":
        os.chown(cache, 12345, 12345)
    elif damage == "writable":
        cache.chmod(0o666)
    elif damage == "link":
        cache.rename(tmp_path / "elsewhere")
        cache.symlink_to(tmp_path / "elsewhere")
    assert config.load(path).driver_root == "/d"
    assert cache.read_bytes() == good
    assert not cache.is_symlink()


def test_unwritable_state_directory_is_no_error(tmp_path: Path, state_directory: Path) -> None:
    state_directory.write_text("in the way")
    path = settled(tmp_path, 'driver-root = "/d"')
    assert config.load(path).driver_root == "/d"


def test_ctk812_no_setting_names_a_program() -> None:
    """NVIDIA's ldconfig setting could run a program of the container: nvhook has none like it."""
    assert [setting.key for setting in SETTINGS if setting.kind in {PATH, FILE}] == [
        "driver-root",
        "dev-root",
        "proc-root",
        "sys-root",
        "state-directory",
        "log-path",
    ]


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_raises_only_config_errors(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data)
    try:
        loaded = config.load(path)
    except ConfigError:
        return
    assert isinstance(loaded, Config)
