"""/proc/driver/nvidia as the container sees it, on a machine whose /proc has none."""

import pytest

SHOW = """
cd /proc/driver/nvidia || exit 1
ls gpus
grep ModifyDeviceFiles params
grep -c . gpus/*/information version registry
touch gpus/new 2>&1
echo changed 2>&1 >params
[ -e capabilities ] || echo no capabilities
"""


@pytest.fixture
def masked(each_engine, bundles):
    """Run a shell script in a container that has such a directory, and asks for something."""

    def run(script: str, *variables: str) -> str:
        bundle = bundles(each_engine)
        bundle.show_proc_driver()
        bundle.ask(*variables)
        bundle.args("/bin/sh", "-c", script)
        return each_engine.start(bundle).stdout

    return run


def test_the_hosts_own_directory_without_a_request(masked, driver):
    listed = masked("ls /proc/driver/nvidia/gpus; cat /proc/driver/nvidia/params").splitlines()

    assert listed[:4] == [gpu.pci_bus_id for gpu in driver.gpus]
    assert "ModifyDeviceFiles: 1" in listed


def test_only_the_given_gpu_and_no_device_files(masked, driver):
    text = masked(SHOW, "NVIDIA_VISIBLE_DEVICES=1")

    bus = driver.gpus[1].pci_bus_id
    lines = text.splitlines()
    assert lines[:2] == [bus, "ModifyDeviceFiles: 0"]
    assert lines[2].startswith(f"gpus/{bus}/information:")
    assert "0" not in [line.rpartition(":")[2] for line in lines[2:5]]
    assert "Read-only file system" in text
    assert lines[-1] == "no capabilities"


def test_two_gpus(masked, driver):
    text = masked("ls /proc/driver/nvidia/gpus", "NVIDIA_VISIBLE_DEVICES=3,0")

    assert text.split() == [driver.gpus[0].pci_bus_id, driver.gpus[3].pci_bus_id]


def test_none(masked):
    assert masked(
        "ls /proc/driver/nvidia/gpus; ls /proc/driver/nvidia", "NVIDIA_VISIBLE_DEVICES=none"
    ).split() == ["params", "registry", "version"]


def test_a_second_hook_leaves_the_mask_alone(runc, bundles):
    bundle = bundles(runc)
    bundle.show_proc_driver()
    bundle.config["hooks"]["prestart"].append(bundle.hook())
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args(
        "/bin/sh", "-c", "cat /proc/driver/nvidia/params; grep -c driver/nvidia /proc/mounts"
    )

    lines = runc.start(bundle).stdout.splitlines()

    assert "ModifyDeviceFiles: 0" in lines
    assert lines[-1] == "2"  # the mask, and the one GPU in it
    source = bundle.directory / "proc-driver/nvidia"
    assert "ModifyDeviceFiles: 1" in (source / "params").read_text()
    assert len(list((source / "gpus").iterdir())) == 4


def test_a_failure_takes_the_mask_away(runc, bundles):
    """What comes after it can't be made: the engine may still look at the container."""
    bundle = bundles(runc)
    bundle.show_proc_driver()
    ours = bundle.config["hooks"]["prestart"].pop()
    before, after = bundle.directory / "before", bundle.directory / "after"
    look = "cat /proc/$pid/mountinfo >{}"
    command = " ".join(ours["args"][1:])
    again = f'printf \'{{"id":"x","pid":%s,"bundle":"{bundle.directory}"}}\' $pid'
    script = (
        f"{look.format(before)}; {again} | {ours['path']} {command} && exit 9; {look.format(after)}"
    )
    bundle.config["hooks"]["prestart"].append(bundle.shell_hook(script))
    bundle.put("/usr/lib64", b"a file where a directory goes")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    assert "a file where a directory goes" in bundle.logged()
    assert before.read_text() == after.read_text()
    assert "proc/driver" in after.read_text()
