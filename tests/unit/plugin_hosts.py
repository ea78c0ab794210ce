"""Hosts for the device plugin's tests: GPUs and MIG devices, as discovery gives them."""

from nvhook.core.inventory import Gpu, Inventory, MigDevice

A100 = "NVIDIA A100-SXM4-40GB"
T4 = "Tesla T4"


def gpu(index: int, model: str = A100, uuid: str = "") -> Gpu:
    """Return a GPU whose minor is not its index."""
    uuid = uuid or f"GPU-{index:08x}-0000-4000-8000-000000000000"
    return Gpu(index, uuid, 7 - index, f"0000:{index + 7:02x}:00.0", model)


def mig(parent: Gpu, index: int, profile: str = "1g.5gb", uuid: str = "") -> MigDevice:
    """Return a MIG device whose instances are not in the order of indices."""
    uuid = uuid or f"MIG-{parent.index:08x}-{index:04x}-5000-8000-000000000000"
    gi = 13 - index
    minor = 100 * parent.index + 10 * gi
    return MigDevice(parent, index, uuid, profile, gi, 0, minor, minor + 1)


def host(*gpus: Gpu, mig_devices: tuple[MigDevice, ...] = ()) -> Inventory:
    """Return a host with these."""
    majors = {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": 235}
    empty = ((), (), (), {})
    return Inventory("550.54.14", "12.4", "/", "/proc", majors, gpus, *empty, mig_devices)
