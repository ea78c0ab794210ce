"""Nodes with a real kubelet, and the device plugin on them."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import images
from tests.kubelet.real import programs
from tests.kubelet.real.node import Node, Plugin, open_node
from tests.runtime import packages

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it needs root."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session")
def kubelet(require: Callable[[bool, str], None]) -> Path:
    """The program."""
    return programs.kubelet(require)


@pytest.fixture(scope="session")
def render(require: Callable[[bool, str], None]) -> Callable[[Path], list[dict[str, Any]]]:
    """Render a kustomization, and check each object as an API server does."""
    program = programs.manifest_checker(require)

    def rendered(directory: Path) -> list[dict[str, Any]]:
        done = subprocess.run([program, directory], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return rendered


@pytest.fixture(scope="session")
def nvhook(installed) -> Path:
    """The installed program."""
    return installed / "bin/nvhook"


@pytest.fixture(scope="module")
def node(hosts, kubelet, archive, nvhook) -> Iterator[Node]:
    """A node of the usual four GPUs, with the distribution's containerd."""
    host = hosts("kubelet", "hybrid", accept_volume_mounts="true")
    with open_node(host, kubelet, archive, nvhook) as made:
        yield made


@pytest.fixture(scope="module")
def isolated_node(hosts, kubelet, archive, nvhook) -> Iterator[Node]:
    """The same with the settings of docs/kubernetes.md, where no pod helps itself to GPUs."""
    settings = {
        "accept_envvar_when_unprivileged": "false",
        "accept_volume_mounts": "true",
        "accept_cdi_annotations": "false",
    }
    with open_node(hosts("isolated", "hybrid", **settings), kubelet, archive, nvhook) as made:
        yield made


@pytest.fixture(scope="module")
def mig_node(hosts, kubelet, workspace, debian, compiled, mig_driver, nvhook) -> Iterator[Node]:
    """A node of four GPUs, two of them in MIG mode, with the newest containerd, which has CDI."""
    archive = workspace / "mig-images.tar"
    images.make_archive(archive, debian, compiled, mig_driver)
    host = hosts("kubelet", "hybrid", mig_driver)
    programs = ("containerd", "containerd-shim-runc-v2", "ctr")
    host.programs.append(packages.newest_programs(programs, "containerd"))
    with open_node(host, kubelet, archive, nvhook) as made:
        yield made


@pytest.fixture
def start(driver) -> Iterator[Callable[..., Plugin]]:
    """Start the plugin on a node; it is stopped, and all pods are removed, after the test."""
    plugins: list[Plugin] = []

    def started(node: Node, *options: str, **file: str) -> Plugin:
        plugins.append(Plugin(node, driver.launcher, *options, **file))
        return plugins[-1]

    yield started
    for plugin in plugins:
        try:
            plugin.node.remove()
        finally:
            plugin.stop()
