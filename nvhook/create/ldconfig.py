"""Let ldconfig write a loader cache that nvhook does not understand."""

from __future__ import annotations

from nvhook.core.edits import LdCacheUpdate
from nvhook.create import loader_cache
from nvhook.kernel import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvhook.core.edits import Plan
    from nvhook.kernel.process import Process
    from nvhook.kernel.root import Root
    from nvhook.log import Log


def rebuild_cache(plan: Plan, process: Process, rootfs: Root, why: str, log: Log) -> None:
    """Let ldconfig write a loader cache that nvhook does not understand.

    Raises: HostError, ContainerError.
    """
    log.warning("loader cache not understood, running ldconfig", why=why)
    updates = [edit for edit in plan.edits if isinstance(edit, LdCacheUpdate)]
    libraries = [library for update in updates for library in update.libraries]
    sandbox.ldconfig(process, rootfs, loader_cache.directories(libraries))
