"""What these tests need beyond a host: the engines."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it needs root."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.root)


@pytest.fixture(scope="session", autouse=True)
def engines(require: Callable[[bool, str], None]) -> None:
    """What the distribution's lanes run."""
    for tool in ("dockerd", "docker", "containerd", "ctr", "podman", "conmon"):
        require(shutil.which(tool) is not None, f"needs {tool}")
