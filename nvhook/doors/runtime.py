"""The OCI runtime: what nvhook-runtime does before it becomes runc or crun.

The launcher passes every call but the creation of a container that may want a GPU straight on. For
those it runs this, waits, and then becomes the real runtime: same arguments, environment, input.
Here only the bundle's config.json is edited, in one step; on failure it is as it was.
"""

from __future__ import annotations

import os
import sys
import time

from nvhook import config as configuration
from nvhook import observations
from nvhook._native import call, lib
from nvhook.core.edits import MOUNTS_BY_HOOK, MOUNTS_IN_SPEC
from nvhook.core.layout import ContainerLayout
from nvhook.core.oci_render import gave_cdi, is_gpu_hook, render
from nvhook.core.request import REQUEST_PREFIX, from_container
from nvhook.create import pipeline
from nvhook.create.recording import Recording
from nvhook.errors import ConfigError, FormatError, NvhookError, one_line
from nvhook.formats.json_splice import encode
from nvhook.formats.oci import container_of, parse_document
from nvhook.formats.oci_edit import LISTS, Additions, splice
from nvhook.log import Log
from nvhook.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvhook.config import Config
    from nvhook.core.request import Request
    from nvhook.formats.json_splice import Splice
    from nvhook.formats.oci import ContainerConfig

STAGE = "createRuntime"
# Explicit and not empty: with none, a runtime hands the hook its own (or the image's) environment.
HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
# A runtime's mount on a shared volume would stay on the host for ever; the hook refuses it.
_SHARED = ("shared", "rshared")
_REPORT = "please report it, with the output of NVHOOK_DEBUG=1 in the engine's environment"


def main(arguments: list[str]) -> NoReturn:
    """Edit a bundle and end the process: 0 done or not a GPU container, 1 failed.

    arguments: ``runtime``, the bundle (absolute), its config.json, the path of the nvhook launcher,
    nvhook's configuration file, the runtime's --log file and --log-format; the last three may be
    empty.
    """
    bundle, config_json, launcher, config, log_path, log_format = arguments[1:]
    log = Log()
    log.bind(bundle=bundle)
    failure: Exception
    try:
        edit_bundle(bundle, config_json, launcher, config or None, log)
    except NvhookError as error:
        failure, line = error, str(error)
    except Exception as error:  # noqa: BLE001 - the door: a bug, too, has to be one line
        failure = error
        line = one_line(f"internal error: {type(error).__name__}: {error} (hint: {_REPORT})")
    else:
        os._exit(0)
    log.error(line)
    print(f"nvhook: {line}", file=sys.stderr)
    if log_path:
        _tell_engine(log_path, log_format, f"nvhook: {line}")
    if os.environ.get("NVHOOK_DEBUG") == "1":
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
    os._exit(1)


def edit_bundle(
    bundle: str, config_json: str, launcher: str, config_path: str | None, log: Log
) -> None:
    """Give a bundle's container in its config.json what it asks for; nothing if it asks for none.

    Raises: NvhookError; the file is unchanged then.
    """
    data = pipeline.read_config(config_json)
    document = parse_document(data)
    recording = Recording()
    container = container_of(document, bundle)
    try:
        settings = configuration.load(config_path)
    except ConfigError as error:
        from nvhook.core.rare_requests import may_ask

        if may_ask(container):
            raise
        log.warning(str(error))
        return
    log.configure(settings.log_path, settings.log_level)
    warnings: list[str] = []
    request = from_container(container, settings, warnings)
    for warning in warnings:
        log.warning(warning)
        recording.line(log, "warning", warning)
    words = ["runtime", config_path or "", launcher]
    if request is None:
        if settings.recordings:
            recording.keep(words, data, log)
        return
    if gave_cdi(document):
        return
    additions = _additions(request, container, settings)
    if request.needs_driver:
        options = ["--config", config_path] if config_path else []
        command = ["nvhook", "hook", STAGE, "--delegated", *options]
        hook: dict[str, object] = {"path": launcher, "args": command, "env": [*HOOK_ENVIRONMENT]}
        additions += Additions(hooks=((STAGE, hook),))
    changes = splice(data.decode(), document, additions, is_gpu_hook)
    _record(changes, recording)
    _replace(config_json, changes.result().encode())
    done = {"devices": len(additions.devices), "source": request.source}
    log.info("edited", **done)
    recording.line(log, "info", "edited", **done)
    if settings.recordings:
        recording.keep(words, data, log)


def _record(changes: Splice, recording: Recording) -> None:
    """Record what is added to the lists of a config.json."""
    appended = changes.appended()
    if appended is None:
        observations.spoil("config.json has devices or hooks that are replaced")
        return
    for path, items in appended.items():
        recording.operation("splice", LISTS.index(path), data=items.encode())


def _additions(request: Request, container: ContainerConfig, settings: Config) -> Additions:
    additions = Additions()
    if request.cdi_devices:
        observations.spoil("CDI specs are read anew for each container")
        from nvhook.core.oci_cdi import additions_of
        from nvhook.host import cdi_registry

        edits = cdi_registry.resolve(request.cdi_devices, settings.cdi_spec_directories)
        given = additions_of(edits, HOOK_ENVIRONMENT)
        if request.needs_driver:
            # The hook reads the request again: a spec's NVIDIA_VISIBLE_DEVICES=void would be it.
            env = [entry for entry in given.env if not entry.startswith(REQUEST_PREFIX)]
            given = replace(given, env=tuple(env))
        additions += given
    if request.needs_driver:
        mounts, layout = settings.handler_mounts, ContainerLayout()
        if container.rootfs_propagation in _SHARED:
            mounts = MOUNTS_BY_HOOK
        if mounts == MOUNTS_IN_SPEC:
            observations.spoil("which mounts a config.json needs depends on all that it has")
            # A spec has no loader cache: that, and what it lists first, is the hook's.
            from nvhook.create.preview import layout_of_root

            layout = layout_of_root(container.root_path, cuda_compat=False)
        plan = pipeline.plan_for(request, settings, layout).plan
        additions += render(plan, container.user_namespace, mounts)
    return additions


def _replace(path: str, data: bytes) -> None:
    """Put a new file in the place of one, with its owner and permissions."""
    directory, _, name = path.rpartition("/")
    try:
        status = os.stat(path)
        parent = os.open(directory or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            owner = status.st_mode, status.st_uid, status.st_gid
            call(lib.nvh_replace_file, parent, name.encode(), data, len(data), *owner)
        finally:
            os.close(parent)
    except OSError as error:
        raise FormatError(f"{path} can't be written: {error.strerror}") from error


def _tell_engine(path: str, form: str, line: str) -> None:
    """Write a line into the runtime's log, where containerd and docker look for what failed.

    crun's other kinds of log, syslog:NAME and journald:NAME, are left out.
    """
    if path.startswith(("syslog:", "journald:")):
        return
    path = path.removeprefix("file:")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if form == "json":
        text = encode({"level": "error", "msg": line, "time": stamp})
    else:
        text = f'time="{stamp}" level=error msg={encode(line)}'
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # standard error has it, too
    try:
        os.write(fd, text.encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(fd)
