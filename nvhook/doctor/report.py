"""All checks of a host or of a container, in the order people should read them."""

from collections.abc import Iterable

from nvhook import config as configuration
from nvhook.config import Config
from nvhook.core.layout import ContainerLayout
from nvhook.create import pipeline, preview
from nvhook.doctor import (
    bundle_checks,
    container,
    container_checks,
    engine_checks,
    facts,
    host_checks,
    library_checks,
    node_checks,
    own_checks,
    platform_checks,
    system_checks,
)
from nvhook.doctor.check import FAILED, Check, failed, not_checked, ok
from nvhook.doctor.container import Asked, Running
from nvhook.errors import ConfigError, ContainerError, FormatError, NvhookError
from nvhook.formats.oci import ContainerConfig, container_of, parse_document
from nvhook.record import replace

UNKNOWN_CONFIGURATION = "the configuration is not valid: where to look is not known"


def of_host(config_path: str | None, root: str = "/") -> tuple[Check, ...]:
    """Check the host that a configuration file describes; root: of the files it does not name."""
    check, config = _configuration(config_path)
    if config is None:
        return (check, not_checked("driver-loaded", UNKNOWN_CONFIGURATION))
    host = facts.read(config, root)
    driver = platform_checks.checks(config)
    if driver is None:
        driver = (*host_checks.checks(host), *node_checks.checks(host))
    return (
        *driver,
        *system_checks.checks(host),
        check,
        *own_checks.checks(host),
        *engine_checks.checks(root),
    )


def of_process(config_path: str | None, pid: int) -> tuple[Check, ...]:
    """Check the running container that a process is in."""
    check, config = _configuration(config_path)
    if config is None:
        return (check, not_checked("container-request", UNKNOWN_CONFIGURATION))
    return (check, *_running(config, pid, None))


def of_bundle(config_path: str | None, bundle: str) -> tuple[Check, ...]:
    """Check the container of a bundle (absolute): what it asks for and, if it runs, what it has.

    Raises: FormatError if config.json can't be read.
    """
    check, config = _configuration(config_path)
    if config is None:
        return (check, not_checked("container-request", UNKNOWN_CONFIGURATION))
    document = parse_document(pipeline.read_config(f"{bundle}/config.json"))
    declared = container_of(document, bundle)
    pid = container.pid_of_bundle(bundle)
    if pid is not None:
        asked = container.asked(declared, config, ContainerLayout())
        return (check, bundle_checks.injection(document, asked), *_running(config, pid, declared))
    try:
        layout = preview.layout_of_root(declared.root_path, config.cuda_forward_compatibility)
    except FormatError as error:
        return (check, failed("container-request", error.message, "the image's root", error.hint))
    asked = container.asked(declared, config, layout)
    return (
        check,
        container_checks.request(asked),
        bundle_checks.injection(document, asked),
        not_checked("container-open", "not running, as far as the bundle tells: give --pid"),
    )


def has_failed(checks: Iterable[Check]) -> bool:
    """Tell whether one of the checks has failed."""
    return any(check.status == FAILED for check in checks)


def document(checks: Iterable[Check]) -> dict[str, object]:
    """Return the object that nvhook doctor --json prints."""
    return {
        "checks": [
            {
                "name": check.name,
                "status": check.status,
                "saw": check.saw,
                "expected": check.expected,
                "fix": check.fix,
            }
            for check in checks
        ]
    }


def _configuration(path: str | None) -> tuple[Check, Config | None]:
    name = "configuration"
    try:
        values = configuration.explicit_values(path)
    except ConfigError as error:
        fix = error.hint or "correct it; nvhook config default prints a whole valid file"
        return failed(name, error.message, "a valid file, or none", fix), None
    where = path or configuration.DEFAULT_PATH
    saw = f"{where}: {len(values)} settings" if values else "every setting has its default"
    return ok(name, saw), replace(configuration.DEFAULTS, **values)


def _running(config: Config, pid: int, declared: ContainerConfig | None) -> tuple[Check, ...]:
    try:
        running = container.Running(pid, declared)
    except ContainerError as error:
        expected = "the number of a process that runs in a container"
        return (failed("container-process", error.message, expected, error.hint),)
    with running:
        asked = container.asked(running.declared, config, container.layout_of(running, config))
        if asked.outcome is None and asked.refusal is None and not asked.notes:
            asked = container.asked_by_nodes(running, config)
        return _has_what_it_asked_for(config, running, asked)


def _has_what_it_asked_for(config: Config, running: Running, asked: Asked) -> tuple[Check, ...]:
    first = container_checks.request(asked)
    if asked.outcome is None:
        return (first,)
    outcome = asked.outcome
    machine = pipeline.machine()
    try:
        version = pipeline.inventory(config).driver_version
    except NvhookError:
        version = ""
    return (
        first,
        container_checks.gpus(running, outcome),
        container_checks.nodes(running, outcome),
        container_checks.device_rules(running, outcome),
        container_checks.opening(running, outcome),
        library_checks.libraries(running, outcome, machine),
        library_checks.driver_version(running, outcome, version, machine),
        library_checks.params_mask(running, config),
    )
