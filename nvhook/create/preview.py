"""What a container would get that is not created yet, or only thought of."""

from __future__ import annotations

import os

from nvhook.core.layout import ContainerLayout
from nvhook.core.request import Request, from_container, parse_capabilities, parse_devices
from nvhook.create.pipeline import layout_of, plan_for, read_container
from nvhook.errors import FormatError, RequestError
from nvhook.kernel.root_view import RootView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.config import Config
    from nvhook.create.pipeline import Outcome


def plan_for_bundle(
    bundle: str, config: Config, warnings: list[str] | None = None
) -> Outcome | None:
    """Plan the container of a bundle that is not running; None if it does not ask for a GPU.

    bundle is absolute; lines that say why a request was not accepted are added to warnings.
    """
    container = read_container(bundle)
    request = from_container(container, config, warnings)
    if request is None:
        return None
    layout = layout_of_root(container.root_path, config.cuda_forward_compatibility)
    return plan_for(request, config, layout)


def layout_of_root(root_path: str, cuda_compat: bool = True) -> ContainerLayout:
    """Look where a container that is not created yet keeps its libraries.

    Raises: FormatError if its root can't be opened.
    """
    try:
        fd = os.open(root_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FormatError(
            f"the bundle's root {root_path} can't be opened: {error.strerror}"
        ) from error
    rootfs = RootView(fd)
    try:
        return layout_of(rootfs, cuda_compat)
    finally:
        rootfs.close()


def plan_for_gpus(devices: str, capabilities: str, config: Config) -> Outcome:
    """Plan a GPU list (grammar of NVIDIA_VISIBLE_DEVICES) with host paths, as a CDI spec has them.

    Raises: RequestError for a list that names nothing.
    """
    asked = parse_devices(devices, "--gpus")
    if asked is None:
        raise RequestError("--gpus names no GPU", "use all, none, indices, UUIDs or PCI bus ids")
    wanted = parse_capabilities(capabilities, config.supported_driver_capabilities)
    return plan_for(Request(asked, wanted, "--gpus"), config, ContainerLayout())
