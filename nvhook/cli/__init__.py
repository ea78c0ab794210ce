"""The command line for people."""

import os
import sys

from nvhook import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> "NoReturn":
    """Run the command line of this process."""
    if sys.argv[1:] == [
        "--version"
    ]:  # asked by scripts: without the 30 ms that click takes to load
        try:
            os.write(1, f"nvhook {__version__}\n".encode())
            sys.exit(0)
        except OSError:
            pass  # the ordinary way has a line for it
    from nvhook.cli import root

    root.run()
