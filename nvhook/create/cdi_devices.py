"""The plan of a container whose device nodes are a CDI spec's: what a spec leaves to the hook."""

from __future__ import annotations

from nvhook.core.given import having
from nvhook.core.layout import ContainerLayout
from nvhook.core.planner import plan_request
from nvhook.core.request import Request, parse_capabilities
from nvhook.create.pipeline import Outcome, inventory
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvhook.config import Config
    from nvhook.core.compat import CompatDirectory


def plan_for_devices(
    devices: Sequence[tuple[str, int, int]],
    capabilities: str,
    config: Config,
    compat: CompatDirectory | None = None,
) -> Outcome:
    """Plan what belongs to the devices whose nodes a container has: (path, major, minor).

    With host paths, as the CDI spec had them that gave it the nodes.
    """
    wanted = parse_capabilities(capabilities, config.supported_driver_capabilities)
    has_capabilities = any(path.startswith("/dev/nvidia-caps/") for path, _, _ in devices)
    host = inventory(config, ("all",) if has_capabilities else (), wanted)
    numbers = frozenset([(major, minor) for _, major, minor in devices])
    given = having(numbers, host)
    # A MIG device's GPU is among them, and its nodes for rendering need not be the container's.
    drm = tuple([each for each in host.drm if (each.node.major, each.node.minor) in numbers])
    host = replace(host, drm=drm)
    request = Request(tuple([device.uuid for device in given]), wanted, "CDI")
    layout = ContainerLayout(compat=compat)
    plan = plan_request(wanted, given, host, layout, device_rules=config.device_rules)
    return Outcome(request, given, plan)
