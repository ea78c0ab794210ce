"""What every test may use."""

import os
from collections.abc import Callable

import pytest


def require(condition: bool, reason: str) -> None:
    """Skip a test whose machine lacks something; with NVHOOK_TEST_FORCE=1 fail it instead."""
    if condition:
        return
    if os.environ.get("NVHOOK_TEST_FORCE") == "1":
        pytest.fail(f"required by NVHOOK_TEST_FORCE=1: {reason}", pytrace=False)
    pytest.skip(f"{reason} (NVHOOK_TEST_FORCE=1 makes this a failure)")


@pytest.fixture(name="require", scope="session")
def require_fixture() -> Callable[[bool, str], None]:
    """Give ``require`` to tests, which can't import a conftest."""
    return require
