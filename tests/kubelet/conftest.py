"""A scripted kubelet, simulated machines, and plugins between them."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvhook.sim.driver import create
from tests.kubelet import processes
from tests.kubelet.plugin import Plugin
from tests.kubelet.scripted import ScriptedKubelet


@pytest.fixture(autouse=True)
def own_processes() -> None:
    """What runs already is not the test's."""
    processes.begin()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nvk-") as name:
        yield Path(name)


@pytest.fixture
def kubelet(short_directory: Path) -> Iterator[ScriptedKubelet]:
    """A kubelet that runs."""
    kubelet = ScriptedKubelet(short_directory / "device-plugins")
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def machine(short_directory: Path) -> Callable[..., Path]:
    """Makes a simulated machine and returns its config.toml."""

    def make(**options: Any) -> Path:
        config = Path(create(str(short_directory / "sim"), report=lambda _: None, **options))
        with config.open("a") as file:
            file.write(f'cdi-spec-directories = ["{short_directory}/cdi"]\n')
        return config

    return make


@pytest.fixture
def plugin(kubelet: ScriptedKubelet) -> Iterator[Callable[..., Plugin]]:
    """Starts plugins, and stops them at the end."""
    started: list[Plugin] = []

    def start(config: Path, *arguments: str, **options: Any) -> Plugin:
        started.append(Plugin(config, kubelet.socket, *arguments, **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()
    assert not (noise := [line for each in started for line in each.noise]), "".join(noise)
