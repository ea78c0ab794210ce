"""nvhook cdi on a simulated driver: what is generated, and which files are replaced."""

import json
import os
import stat
import subprocess
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvhook import config
from nvhook.cdi import specs
from nvhook.cli.root import main
from nvhook.core.features import FEATURES, IMEX, MANAGEMENT
from nvhook.errors import HostError
from nvhook.formats.cdi_reader import parse
from nvhook.formats.cdi_spec import Spec
from nvhook.host.feature_nodes import find_feature_nodes
from nvhook.sim.driver import create
from nvhook.sim.machine import gpu_uuid

MINORS = (2, 3, 1, 0)
VOID = "NVIDIA_VISIBLE_DEVICES=void"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, require) -> Path:
    """Give the directory of a simulated driver with everything, to be read only."""
    require(os.geteuid() == 0, "needs root: mknod")
    base = tmp_path_factory.mktemp("driver")
    features = ("gds", "mofed", "gdrcopy", "nvswitch", "imex")
    create(str(base), minors=MINORS, features=features)
    return base


@pytest.fixture
def own_driver(tmp_path: Path, require) -> Path:
    """Give the directory of a simulated driver that a test may change."""
    require(os.geteuid() == 0, "needs root: mknod")
    create(str(tmp_path / "driver"), minors=MINORS)
    return tmp_path / "driver"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["cdi", *map(str, arguments)], prog_name="nvhook")


def generate(base: Path, *arguments: str | Path) -> Result:
    return invoke("generate", "--config", base / "config.toml", *arguments)


def spec_of(base: Path, *arguments: str) -> Spec:
    result = generate(base, "--format", "json", *arguments)
    assert result.exit_code == 0, result.stderr
    return parse(result.stdout_bytes, "stdout.json")


def nodes(spec: Spec) -> dict[str, list[str]]:
    return {d.name: [node.path for node in d.edits.device_nodes] for d in spec.devices}


def test_gpus_by_index_by_uuid_and_all(driver: Path) -> None:
    found = spec_of(driver)
    by_index = [
        [f"/dev/nvidia{minor}", f"/dev/dri/card{index + 1}", f"/dev/dri/renderD{128 + index}"]
        for index, minor in enumerate(MINORS)
    ]
    expected = {str(index): paths for index, paths in enumerate(by_index)}
    expected |= {gpu_uuid(index): paths for index, paths in enumerate(by_index)}
    assert nodes(found) == expected | {"all": [path for paths in by_index for path in paths]}
    assert (found.version, found.kind) == ("0.5.0", "nvidia.com/gpu")


def test_the_common_part_is_the_driver_and_one_hook(driver: Path) -> None:
    edits = spec_of(driver).edits
    assert edits.env == (VOID,)
    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    (hook,) = edits.hooks
    assert hook.hook_name == "createRuntime"
    assert hook.args == (
        "nvhook",
        "hook",
        "createRuntime",
        "--cdi",
        "compat32,compute,display,graphics,ngx,utility,video",
        "--config",
        str(driver / "config.toml"),
    )
    assert hook.env == ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
    assert os.access(hook.path, os.X_OK)
    mounts = {mount.container_path: mount for mount in edits.mounts}
    library = mounts["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"]
    assert library.host_path == f"{driver}/root{library.container_path}"
    assert library.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")
    assert not [path for path in mounts if path.startswith("/proc")]


def test_without_a_configuration_the_hook_takes_the_default_one(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "DEFAULT_PATH", str(driver / "config.toml"))
    result = invoke("generate", "--format", "json")
    (hook,) = parse(result.stdout_bytes, "stdout.json").edits.hooks
    assert "--config" not in hook.args


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--device-id", "1"], ["1", gpu_uuid(1), "all"]),
        (["--device-id", "1,0", "--device-name-strategy", "index"], ["0", "1", "all"]),
        (["--device-id", "3", "--device-id", "1", "--device-name-strategy", "type-index"],
         ["gpu1", "gpu3", "all"]),
        (["--device-id", gpu_uuid(2), "--no-all-device"], ["2", gpu_uuid(2)]),
        (["--device-id", "0", "--device-name-strategy", "uuid"], [gpu_uuid(0), "all"]),
    ],
)  # fmt: skip
def test_the_devices_that_were_asked_for(
    driver: Path, arguments: list[str], names: list[str]
) -> None:
    assert list(nodes(spec_of(driver, *arguments))) == names


def test_capabilities_vendor_class_and_launcher(driver: Path) -> None:
    found = spec_of(
        driver, "--capabilities", "utility", "--vendor", "a.org", "--class", "b", "--hook-path",
        "/bin/sh",
    )  # fmt: skip
    assert found.kind == "a.org/b"
    assert found.edits.hooks[0].path == "/bin/sh"
    assert found.edits.hooks[0].args[3:5] == ("--cdi", "utility")
    names = [mount.container_path.rpartition("/")[2] for mount in found.edits.mounts]
    assert "libnvidia-ml.so.550.54.14" in names
    assert "libcuda.so.550.54.14" not in names


def test_the_launcher_is_the_one_that_was_run(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVHOOK_LAUNCHER", "/bin/sh")
    assert spec_of(driver).edits.hooks[0].path == "/bin/sh"


def test_the_launcher_says_where_it_is_whatever_it_was_called_by(
    driver: Path, tmp_path: Path
) -> None:
    launcher = Path(sysconfig.get_path("scripts")) / "nvhook"
    (tmp_path / "link").symlink_to(launcher)
    done = subprocess.run(
        [tmp_path / "link", "cdi", "generate", "--config", driver / "config.toml"],
        env={"NVHOOK_LAUNCHER": "/somebody/elses", "PATH": ""},
        capture_output=True,
        check=True,
    )
    (hook,) = parse(done.stdout, "stdout.yaml").edits.hooks
    assert hook.path == str(launcher.resolve())


@pytest.mark.parametrize(
    ("mode", "kind", "expected"),
    [
        ("gds", "nvidia.com/gds", {"all": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]}),
        (
            "mofed",
            "nvidia.com/mofed",
            {
                "all": [
                    "/dev/infiniband/uverbs0",
                    "/dev/infiniband/uverbs1",
                    "/dev/infiniband/rdma_cm",
                ]
            },
        ),
        ("gdrcopy", "nvidia.com/gdrcopy", {"all": ["/dev/gdrdrv"]}),
        (
            "nvswitch",
            "nvidia.com/nvswitch",
            {"all": ["/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"]},
        ),
        (
            "imex",
            "nvidia.com/imex-channel",
            {
                **{str(n): [f"/dev/nvidia-caps-imex-channels/channel{n}"] for n in range(3)},
                "all": [f"/dev/nvidia-caps-imex-channels/channel{n}" for n in range(3)],
            },
        ),
        (
            "management",
            "management.nvidia.com/gpu",
            {
                "all": [
                    *[f"/dev/nvidia{minor}" for minor in range(4)],
                    *[f"/dev/nvidia-caps-imex-channels/channel{n}" for n in range(3)],
                ]
            },
        ),
    ],
)
def test_other_modes(driver: Path, mode: str, kind: str, expected: dict[str, list[str]]) -> None:
    found = spec_of(driver, "--mode", mode)
    assert found.kind == kind
    assert nodes(found) == expected
    is_driver = mode == "management"
    assert bool(found.edits.hooks) is is_driver
    # void would take a GPU away that the container asks for with the variable
    assert found.edits.env == ((VOID,) if is_driver else ())


def test_management_of_a_host_whose_gpus_have_gone(own_driver: Path) -> None:
    for minor in MINORS:
        (own_driver / f"dev/nvidia{minor}").unlink()
    found = nodes(spec_of(own_driver, "--mode", "management"))
    assert sorted(found["all"]) == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidiactl",
    ]


def test_files_of_gds(driver: Path) -> None:
    (device,) = spec_of(driver, "--mode", "gds").devices
    assert [(mount.host_path, mount.container_path) for mount in device.edits.mounts] == [
        (f"{driver}/root/etc/cufile.json", "/etc/cufile.json"),
        (f"{driver}/run/udev", "/run/udev"),
    ]


def test_some_channels(driver: Path) -> None:
    found = spec_of(driver, "--mode", "imex", "--device-id", "2,0", "--no-all-device")
    assert list(nodes(found)) == ["0", "2"]


def test_a_name_that_is_no_device_is_not_found(own_driver: Path) -> None:
    dev = own_driver / "dev"
    channels = dev / "nvidia-caps-imex-channels"
    channels.mkdir()
    (channels / "channel0").touch()
    (channels / "channel1").symlink_to("/dev/null")
    for number in (10, 9):
        os.mknod(channels / f"channel{number}", 0o020666, os.makedev(500, number))
    names = [node.name for node in find_feature_nodes(IMEX, f"{dev}/")]
    assert names == [f"nvidia-caps-imex-channels/channel{number}" for number in (9, 10)]
    os.mknod(dev / "nvidia-nvlink", 0o020666, os.makedev(500, 1))
    assert "nvidia-nvlink" not in [n.name for n in find_feature_nodes(MANAGEMENT, str(dev))]


@pytest.mark.parametrize("mode", [name for name in FEATURES if name != "management"])
def test_a_feature_that_the_host_does_not_have(own_driver: Path, mode: str) -> None:
    result = generate(own_driver, "--mode", mode)
    assert result.exit_code == 1
    assert f"this host has no {mode}: there is no {own_driver}/dev/" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--device-id", "7"], 1, "unknown device id 7"),
        (["--device-id", "none"], 1, "--device-id names no device"),
        (["--device-id", "void"], 1, "--device-id names no device"),
        (["--mode", "imex", "--device-id", "9"], 1, "IMEX channel 9 does not exist"),
        (["--capabilities", "nonsense"], 1, "unknown driver capability nonsense"),
        (["--vendor", "-"], 2, "'-/gpu' is not a vendor and a class"),
        (["--output", "spec.yml"], 2, "engines read no spec.yml"),
        (["--output", "spec.json", "--format", "yaml"], 2, "--format yaml does not go with"),
        (["--hook-path", "/absent"], 1, "the hook /absent is not a program"),
        (["--mode", "csv"], 2, "invalid value for '--mode'"),
    ],
)
def test_what_can_not_be_generated(
    driver: Path, arguments: list[str], status: int, reason: str
) -> None:
    result = generate(driver, *arguments)
    assert result.exit_code == status
    assert result.stderr.startswith("nvhook: ")
    assert reason in result.stderr
    assert result.stdout == ""
    assert not Path("spec.json").exists()


# ---- the file


def test_a_file_is_made_with_its_directory_and_can_be_read_by_all(
    driver: Path, tmp_path: Path
) -> None:
    umask = os.umask(0o077)
    try:
        result = generate(driver, "--output", tmp_path / "cdi/nvidia.yaml")
    finally:
        os.umask(umask)
    path = tmp_path / "cdi/nvidia.yaml"
    assert result.stdout == f"{path}: 9 devices of nvidia.com/gpu\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert parse(path.read_bytes(), str(path)) == spec_of(driver)
    assert os.listdir(path.parent) == ["nvidia.yaml"]


def test_a_file_that_says_the_same_is_left_alone(driver: Path, tmp_path: Path) -> None:
    path = tmp_path / "nvidia.json"
    generate(driver, "--output", path)
    before = path.stat()
    result = generate(driver, "--output", path)
    assert result.stdout == f"{path}: unchanged\n"
    after = path.stat()  # reading it may change the time of access
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    generate(driver, "--output", path, "--device-id", "0")
    assert path.stat().st_ino != before.st_ino
    assert list(nodes(parse(path.read_bytes(), str(path)))) == ["0", gpu_uuid(0), "all"]


def test_a_node_of_other_numbers_leaves_the_old_file(own_driver: Path, tmp_path: Path) -> None:
    path = tmp_path / "nvidia.yaml"
    generate(own_driver, "--output", path)
    before = path.read_bytes()
    uvm = own_driver / "dev/nvidia-uvm"
    uvm.unlink()
    os.mknod(uvm, 0o020666, os.makedev(400, 0))
    result = generate(own_driver, "--output", path)
    assert result.exit_code == 1
    assert f"{uvm} is device 400:0, but the driver has" in result.stderr
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["driver", "nvidia.yaml"]


def test_a_file_that_can_not_be_replaced_leaves_no_other(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").mkdir()
    result = generate(driver, "--output", tmp_path / "nvidia.yaml")
    assert result.exit_code == 1
    assert "Is a directory" in result.stderr
    with pytest.raises(OSError, match="directory"):
        specs.write(str(tmp_path / "nvidia.yaml/"), "x")
    assert os.listdir(tmp_path) == ["nvidia.yaml"]


def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    assert specs.write(str(path), "old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(specs.os, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        specs.write(str(path), "new")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a.json": "old"}


def wanted() -> specs.Wanted:
    return specs.Wanted("/bin/sh", capabilities="compute,utility")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("node gone", "dev/nvidia3: No such file or directory"),
        ("node of other numbers", "dev/nvidia3 is not character device 195:3 any more"),
        ("node of a block device", "dev/nvidia3 is not character device 195:3 any more"),
        ("node that is a file", "dev/nvidia3 is not character device 195:3 any more"),
        ("library gone", "libcuda.so.550.54.14 has gone while the CDI spec was made"),
    ],
)
def test_what_changes_under_its_hands_is_noticed(
    own_driver: Path, change: str, reason: str
) -> None:
    settings = config.load(str(own_driver / "config.toml"))
    spec = specs.generate(wanted(), settings)
    specs.verify(spec)
    node = own_driver / "dev/nvidia3"
    if change == "library gone":
        next(own_driver.glob("root/usr/lib/x86_64*/libcuda.so.5*")).unlink()
    else:
        node.unlink()
    if change == "node of other numbers":
        os.mknod(node, 0o020666, os.makedev(195, 9))
    elif change == "node of a block device":
        os.mknod(node, 0o060666, os.makedev(195, 3))
    elif change == "node that is a file":
        node.touch()
    with pytest.raises(HostError, match=reason):
        specs.verify(spec)


def test_a_node_for_a_group_needs_a_newer_version(own_driver: Path) -> None:
    os.chmod(own_driver / "dev/nvidia2", 0o660)
    os.chown(own_driver / "dev/nvidia2", 0, 44)
    found = spec_of(own_driver)
    assert found.version == "0.7.0"
    by_name = {device.name: device.edits for device in found.devices}
    assert by_name["0"].additional_gids == (44,)
    assert by_name["all"].additional_gids == (44,)
    assert by_name["1"].additional_gids == ()
    assert by_name["0"].device_nodes[0].file_mode == 0o660


# ---- list, validate


def test_list_names_devices_files_and_what_was_left_out(driver: Path, tmp_path: Path) -> None:
    static, dynamic = tmp_path / "etc", tmp_path / "run"
    generate(driver, "--output", static / "nvidia.yaml", "--device-name-strategy", "index")
    generate(driver, "--output", dynamic / "nvidia.json", "--device-id", "1")
    for name in ("one", "two"):
        generate(driver, "--output", static / f"{name}.yaml", "--mode", "gds")
    (static / "bad.yaml").write_text("kind: [\n")
    result = invoke("list", "--spec-dir", static, "--spec-dir", dynamic)
    assert result.exit_code == 0
    rows = dict(line.split() for line in result.stdout.splitlines()[1:])
    assert rows["nvidia.com/gpu=1"] == str(dynamic / "nvidia.json")
    assert rows["nvidia.com/gpu=0"] == str(static / "nvidia.yaml")
    assert "nvidia.com/gds=all" not in rows
    assert f"left out: {static}/bad.yaml: is not YAML" in result.stderr
    assert (
        f"left out: nvidia.com/gds=all is defined by {static}/one.yaml and {static}/two.yaml"
    ) in result.stderr

    document = json.loads(
        invoke("list", "--spec-dir", static, "--spec-dir", dynamic, "--json").stdout
    )
    assert {device["name"]: device["file"] for device in document["devices"]} == rows
    assert list(document["conflicts"]) == ["nvidia.com/gds=all"]
    assert [finding["file"] for finding in document["findings"]] == [f"{static}/bad.yaml"]
    assert document["directories"] == [str(static), str(dynamic)]


def test_list_without_a_device(tmp_path: Path) -> None:
    result = invoke("list", "--spec-dir", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"no CDI device in {tmp_path}\n")


def test_validate_shows_everything_in_every_file(tmp_path: Path) -> None:
    good, bad, absent = (tmp_path / name for name in ("good.yaml", "bad.json", "absent.json"))
    good.write_text(
        "cdiVersion: 0.3.0\nkind: a/b\ndevices: [{name: c, containerEdits: {env: [A=]}}]"
    )
    bad.write_text('{"cdiVersion": "0.3.0", "kind": "a", "devices": [], "more": 1}')
    result = invoke("validate", good, bad, absent)
    assert result.exit_code == 1
    known = "cdiVersion, kind, annotations, devices, containerEdits"
    assert result.stdout.splitlines() == [
        f"{good}: valid",
        f"{bad}: more: unknown field; known are {known}",
        f"{bad}: kind: 'a' is not a vendor and a class: nvidia.com/gpu",
        f"{bad}: devices: there must be at least one device",
        f"{absent}: can't be read: No such file or directory",
    ]
    assert invoke("validate", good).exit_code == 0


def test_validate_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"cdiVersion": "0.3.0", "kind": "a/b", "devices": []}')
    result = invoke("validate", tmp_path / "a.json", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "valid": False,
        "findings": [
            {
                "file": str(tmp_path / "a.json"),
                "path": "devices",
                "reason": "there must be at least one device",
            }
        ],
    }
