"""Where the package under test is installed, and its hot doors in it."""

import os
from pathlib import Path

import nvhook

SITE = Path(nvhook.__file__).parent.parent
_LIBRARY = Path(os.__file__).parent
PACKED = SITE / "nvhook/_hot" / _LIBRARY.parent.name / _LIBRARY.name
