"""Which CUDA version a driver has: data, so that nobody has to load NVML for it.

Source: CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions", and what
nvidia-smi of these drivers prints.
"""

# Driver branch -> CUDA version (major, minor), newest first: a branch between two has the older
# one's.
CUDA_VERSIONS = (
    (595, (13, 2)),
    (590, (13, 1)),
    (580, (13, 0)),
    (575, (12, 9)),
    (570, (12, 8)),
    (565, (12, 7)),
    (560, (12, 6)),
    (555, (12, 5)),
    (550, (12, 4)),
    (545, (12, 3)),
    (535, (12, 2)),
    (530, (12, 1)),
    (525, (12, 0)),
    (520, (11, 8)),
    (515, (11, 7)),
    (510, (11, 6)),
    (495, (11, 5)),
    (470, (11, 4)),
    (465, (11, 3)),
    (460, (11, 2)),
    (455, (11, 1)),
    (450, (11, 0)),
    (440, (10, 2)),
    (418, (10, 1)),
    (410, (10, 0)),
    (396, (9, 2)),
    (390, (9, 1)),
    (384, (9, 0)),
    (361, (8, 0)),
    (352, (7, 5)),
    (346, (7, 0)),
    (340, (6, 5)),
    (331, (6, 0)),
    (319, (5, 5)),
    (304, (5, 0)),
)


def cuda_version(driver_version: str) -> str:
    """Return ``12.4`` for driver 550.54.14; empty for what is older than the table."""
    branch = _branch(driver_version)
    for first, (major, minor) in CUDA_VERSIONS:
        if branch >= first:
            return f"{major}.{minor}"
    return ""


def is_beyond_table(driver_version: str) -> bool:
    """Tell whether the driver is of a branch newer than the table's: it may have a newer CUDA."""
    # A branch has all its releases' numbers: 595 ends where the next one begins, five later.
    return _branch(driver_version) >= CUDA_VERSIONS[0][0] + 5


def _branch(driver_version: str) -> int:
    text = driver_version.partition(".")[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
