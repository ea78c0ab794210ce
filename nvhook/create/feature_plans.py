"""The plans of GPUDirect Storage and its like: loaded only for a container that asks for one."""

from __future__ import annotations

from nvhook.core import features
from nvhook.core.planner import without_rules
from nvhook.host.feature_nodes import find_feature_files, find_feature_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.config import Config
    from nvhook.core.edits import Plan
    from nvhook.core.request import Request


def feature_plans(request: Request, config: Config) -> list[Plan]:
    """Return the plans of a request's features and IMEX channels.

    Raises: HostError, RequestError.
    """
    plans = []
    for name in request.features:
        feature = features.FEATURES[name]
        nodes = find_feature_nodes(feature, config.dev_root)
        files = find_feature_files(feature, config.driver_root, config.dev_root)
        plans.append(features.feature_plan(feature, nodes, files, config.dev_root))
    if request.imex_channels:
        nodes = find_feature_nodes(features.IMEX, config.dev_root)
        channels = features.channel_plans(request.imex_channels, nodes, config.dev_root)
        plans += channels.values()
    return plans if config.device_rules else [without_rules(plan) for plan in plans]
