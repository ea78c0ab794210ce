"""Which systemd unit a cgroup belongs to: systemd's names count, a container's own do not."""

import pytest

from nvhook.kernel.cgroup import unit_in


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/docker-1f.scope", "docker-1f.scope"),
        ("/kubepods.slice/kubepods-pod1.slice/cri-containerd-1f.scope", "cri-containerd-1f.scope"),
        ("/machine.slice/libpod-1f.scope/container", "libpod-1f.scope"),
        ("/system.slice/docker-1f.scope/system.slice/sshd.service", "docker-1f.scope"),
        ("/docker/1f/sshd.service", ""),
        ("/docker/1f/system.slice/sshd.service", ""),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-1f.scope", ""),
        ("/system.slice", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_only_slices_stand_above_a_unit(path: str, unit: str) -> None:
    assert unit_in(path) == unit
