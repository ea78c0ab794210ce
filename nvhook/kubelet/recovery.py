"""Ask NVML whether a GPU that answers is broken all the same, until it is reset.

After such errors as Xid 48 memory can still be asked for, but programs fail. Source: NVML's API
reference (field values, remapped rows), NVIDIA's GPU memory error management guide.
"""

import contextlib

import pynvml

# Since driver 570; older versions of pynvml have no name for it.
RECOVERY_ACTION = 230
# Those that are not here leave the GPU itself usable.
_ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    4: "a reset of the GPU, once it is drained",
    6: "a reset of its bus",
    7: "a reboot of the system",
}


def needed(handle: object) -> str:
    """Return what a GPU needs before it can be used again; empty: nothing, as far as NVML knows."""
    with contextlib.suppress(pynvml.NVMLError):  # a driver, or a GPU, that can't tell
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.value.uiVal in _ACTIONS:
            return f"NVML asks for {_ACTIONS[value.value.uiVal]}"
    with contextlib.suppress(pynvml.NVMLError):
        _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "a row of its memory can't be remapped"
        if pending:
            return "a row of its memory is remapped by the next reset of the GPU"
    return ""
