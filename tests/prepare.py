"""Build what takes longest into the test cache: ``python -m tests.prepare``.

scripts/test.sh runs it beside the first tests. What it does not get done they do themselves.
"""

import sys

from tests.kubelet.real import programs


def require(condition: bool, reason: str) -> None:
    """End where something is not there: the tests say so, too."""
    if not condition:
        sys.exit(reason)


if __name__ == "__main__":
    programs.kubelet(require)
    programs.manifest_checker(require)
