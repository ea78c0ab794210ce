"""nvhook's own CDI specs, made by its command and put into a config.json as an engine would."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nvhook.core.oci_cdi import additions_of
from nvhook.formats.oci import parse_document
from nvhook.formats.oci_edit import add
from nvhook.host import cdi_registry
from tests.runtime.bundle import Bundle


def generate(launcher: Path, settings: Path, output: Path, *options: str) -> None:
    """Write a spec for the host of these settings."""
    command = [launcher, "cdi", "generate", "--config", settings, "--output", output]
    subprocess.run([*command, *options], check=True, capture_output=True)


def inject(bundle: Bundle, specs: Path, *names: str) -> None:
    """Do what an engine that knows CDI does."""
    edits = cdi_registry.resolve(names, [str(specs)])
    text = json.dumps(bundle.config)
    additions = additions_of(edits, ())
    bundle.config = json.loads(add(text, parse_document(text.encode()), additions))


def generate_and_inject(bundle: Bundle, place: Path, names: Sequence[str]) -> None:
    """Make a spec for a bundle's host in a new directory, and inject these devices of it."""
    specs = place / "cdi"
    specs.mkdir()
    generate(bundle.driver.launcher, bundle.settings, specs / "nvidia.json")
    inject(bundle, specs, *[f"nvidia.com/gpu={name}" for name in names])
