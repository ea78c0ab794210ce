"""The command line for people."""

import os
import sys
from typing import NoReturn

from nvhook import __version__


def run() -> NoReturn:
    """Run the command line of this process."""
    # Scripts ask for it: without the 30 ms that click takes to load.
    if sys.argv[1:] == ["--version"]:
        try:
            os.write(1, f"nvhook {__version__}\n".encode())
            sys.exit(0)
        except OSError:
            pass  # the ordinary way has a line for it
    from nvhook.cli import root

    root.run()
