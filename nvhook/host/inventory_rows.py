"""Write the inventory's cache file: cold, so it may import json, which its reader may not."""

from nvhook.host.inventory_cache import FILE_FIELDS, GPU_FIELDS, LIBRARY_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.inventory import Inventory


def render(inventory: "Inventory", key: list[str]) -> bytes:
    """Return the file's bytes; sockets are left out, their daemons come and go."""
    import json

    content = {
        "key": key,
        "cuda_version": inventory.cuda_version,
        "gpus": _rows(inventory.gpus, GPU_FIELDS),
        "libraries": _rows(inventory.libraries, LIBRARY_FIELDS),
        "files": _rows([file for file in inventory.files if file.group != "socket"], FILE_FIELDS),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _rows(records: "Iterable[object]", fields: tuple[tuple[str, type], ...]) -> list[list[object]]:
    return [[getattr(record, name) for name, _ in fields] for record in records]
