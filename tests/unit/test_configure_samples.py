"""Every real engine configuration is configured as expected and given back, or refused.

The expected texts stand in ``expected`` beside the samples. NVHOOK_TEST_WRITE=1 writes them anew:
look at the difference before you commit it.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvhook.engines import containerd, crio, docker, podman
from nvhook.engines.registration import Registration
from nvhook.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parents[1] / "data/engines"
RUNTIME = "/usr/local/bin/nvhook-runtime"
ASKED = {
    "plain": Registration("nvidia", RUNTIME),
    "default+cdi": Registration("nvidia", RUNTIME, set_as_default=True, cdi=True),
    "other-name": Registration("nvhook", RUNTIME, set_as_default=True),
}
Register = Callable[[str | None, Registration, str], str]
Unregister = Callable[[str, str], str | None]
ENGINES: dict[str, tuple[Register, Unregister]] = {
    "docker": (docker.register, docker.unregister),
    "containerd": (containerd.register, containerd.unregister),
    "crio": (crio.register, crio.unregister),
    "containers.conf": (podman.register_runtime, podman.unregister_runtime),
}
REFUSED = {
    "daemon-INVALID-missing_comma.json": "FILE line 3: expecting ',' delimiter",
    "v1-k3s_template_old.tmpl": "FILE line 2: a Go template of k3s, not TOML (hint: k3s finds",
    "v2-k3s_template.tmpl": "FILE line 1: a Go template of k3s, not TOML (hint: k3s finds",
    "v2-k3s_generated.toml": "FILE line 2: k3s writes this file anew at each start (hint: k3s",
}
HOOKS = {  # what podman's hook directories hold besides: program that would inject twice, if any
    "oci-nvidia-hook-0.1.0.json": "nvidia-container-runtime-hook",
    "oci-nvidia-hook-1.0.0.json": "nvidia-container-runtime-hook",
    "oci-nvidia-hook-always_only.json": "nvidia-container-runtime-hook",
    "oci-nvidia-hook-toolkit_name.json": "nvidia-container-toolkit",
    "oci-systemd-hook-cmd.json": None,
}


def samples(engine: str) -> list[Path]:
    if engine == "containers.conf":
        return sorted((DATA / "podman").glob("*.conf"))
    return sorted(path for path in (DATA / engine).iterdir() if path.is_file())


ALL = [(engine, path) for engine in ENGINES for path in samples(engine)]
CONFIGURED = [
    pytest.param(engine, path, asked, id=f"{path.name}-{asked}")
    for engine, path in ALL
    if path.name not in REFUSED
    for asked in ASKED
]


def read(path: Path) -> str:
    return path.read_bytes().decode()


def entry_of(engine: str, text: str, name: str) -> dict[str, object]:
    """Return what a reader of the file sees of the runtime."""
    if engine == "docker":
        entry: dict[str, object] = json.loads(text)["runtimes"][name]
        return entry
    document = tomllib.loads(text)
    if engine == "crio":
        return dict(document["crio"]["runtime"]["runtimes"][name])
    if engine == "containers.conf":
        return {"path": document["engine"]["runtimes"][name][0]}
    found = [
        plugin["containerd"]["runtimes"][name]
        for plugin in document["plugins"].values()
        if name in plugin.get("containerd", {}).get("runtimes", {})
    ]
    assert len(found) == 1
    return {"path": found[0]["options"]["BinaryName"], **found[0]}


@pytest.mark.parametrize(("engine", "path", "asked"), CONFIGURED)
def test_sample_is_configured_as_expected_and_given_back(
    engine: str, path: Path, asked: str
) -> None:
    register, unregister = ENGINES[engine]
    before = read(path)
    after = register(before, ASKED[asked], "FILE")
    entry = entry_of(engine, after, ASKED[asked].runtime_name)
    assert RUNTIME in entry.values()
    assert register(after, ASKED[asked], "FILE") == after
    assert unregister(after, "FILE") == before
    assert unregister(before, "FILE") == before
    expected = path.parent / "expected" / asked / path.name
    if os.environ.get("NVHOOK_TEST_WRITE") == "1":
        expected.parent.mkdir(parents=True, exist_ok=True)
        expected.write_bytes(after.encode())
    assert after == read(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_sample_is_refused_with_file_line_and_reason(name: str) -> None:
    engine, path = next((engine, path) for engine, path in ALL if path.name == name)
    register, unregister = ENGINES[engine]
    for function in (lambda t, f: register(t, ASKED["plain"], f), unregister):
        with pytest.raises(ConfigError) as caught:
            function(read(path), str(path))
        line = str(caught.value).replace(str(path), "FILE")
        assert line.startswith(REFUSED[name])
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("asked", ASKED)
def test_file_that_is_not_there_is_made_and_goes_again(engine: str, asked: str) -> None:
    register, unregister = ENGINES[engine]
    after = register(None, ASKED[asked], "FILE")
    assert RUNTIME in entry_of(engine, after, ASKED[asked].runtime_name).values()
    assert register(after, ASKED[asked], "FILE") == after
    assert unregister(after, "FILE") is None
    empty = register("", ASKED[asked], "FILE")
    assert unregister(empty, "FILE") == ""


@pytest.mark.parametrize("path", sorted((DATA / "podman").glob("*.json")), ids=lambda p: p.name)
def test_hook_of_another_program(path: Path) -> None:
    program = HOOKS[path.name]
    found = podman.hook_conflicts([("OTHER", read(path))])
    if program is None:
        assert found == []
    else:
        assert found == [f"OTHER calls {program}, which injects GPUs, too: remove it"]
    with pytest.raises(ConfigError, match="FILE is not as nvhook writes it"):
        podman.register_hook(read(path), "/usr/local/bin/nvhook", "FILE")


def test_samples_and_expectations_belong_together() -> None:
    assert {path.name for path in (DATA / "podman").glob("*.json")} == set(HOOKS)
    assert set(REFUSED) <= {path.name for _, path in ALL}
    wanted = {(path.parent.name, path.name) for _, path in ALL if path.name not in REFUSED}
    expected = {(path.parents[2].name, path.name) for path in DATA.glob("*/expected/*/*")}
    assert expected == wanted
