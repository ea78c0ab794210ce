"""Where the package under test is installed."""

from pathlib import Path

import nvhook

SITE = Path(nvhook.__file__).parent.parent
