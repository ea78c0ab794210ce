"""nvhook-runtime is the runtime behind it: arguments, environment, descriptors, signals, status."""

import json
import os
import re
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

RUNTIME = Path(sysconfig.get_path("scripts")) / "nvhook-runtime"
# What a runtime gets, as JSON; "$STATUS" is the status to end with.
RECORDER = """#!/usr/bin/python3 -IS
import json, os, sys
seen = {
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
    "input": sys.stdin.read(),
    "pid": os.getpid(),
}
print(json.dumps(seen))
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def recorder(place: Path) -> Path:
    program = place / "recorder"
    program.write_text(RECORDER)
    program.chmod(0o755)
    return program


@pytest.fixture
def gpu_bundle(runc, bundles):
    """A bundle that asks for a GPU; its hook is not there yet."""
    bundle = bundles(runc)
    bundle.config.pop("hooks")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.write()
    return bundle


def call(program: Path, *arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], cwd=cwd, capture_output=True, text=True, check=False, **options
    )


def environment(recorder: Path, bundle, **more: str) -> dict[str, str]:
    chosen = {"NVHOOK_RUNTIME": str(recorder), "NVHOOK_CONFIG": str(bundle.settings)}
    return {"PATH": "/usr/bin:/bin", "ODD": "a=b\nc", **chosen, **more}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--root", "/r", "--log", "/l", "--log-format", "json", "state", "c1"],
        ["--root", "/r", "create", "--bundle", "{bundle}", "--pid-file", "/p", "c1"],
        ["run", "-d", "-b", "{bundle}", "c1"],
        ["exec", "--process", "/p.json", "--detach", "c1", "create"],
        ["update", "--resources", "-", "c1"],
        ["kill", "--all", "c1", "9"],
        ["nonsense", "", "two words", "--", "ü", "\n"],
        [],
    ],
    ids=["state", "create", "run", "exec", "update", "kill", "nonsense", "nothing"],
)
@pytest.mark.parametrize("status", [0, 1, 137])
def test_the_runtime_gets_what_the_engine_gave(recorder, gpu_bundle, arguments, status) -> None:
    arguments = [each.format(bundle=gpu_bundle.directory) for each in arguments]
    env = environment(recorder, gpu_bundle, STATUS=str(status))
    reader, writer = os.pipe()
    options = {"cwd": gpu_bundle.directory, "env": env, "input": "text", "pass_fds": (reader,)}
    try:
        direct = call(recorder, *arguments, **options)
        through = call(RUNTIME, *arguments, **options)
    finally:
        os.close(reader)
        os.close(writer)

    assert (
        (through.returncode, through.stderr) == (direct.returncode, direct.stderr) == (status, "")
    )
    expected, seen = json.loads(direct.stdout), json.loads(through.stdout)
    del expected["pid"], seen["pid"]
    assert seen == expected


def test_the_process_the_engine_started_becomes_the_runtime(place, gpu_bundle) -> None:
    """So that signals and the parent's death reach it; an ignored SIGCHLD stays ignored."""
    program = place / "sleeper"
    program.write_text(
        "#!/usr/bin/python3 -IS\nimport os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
        "print(os.getpid(), signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN, flush=True)\n"
        "signal.pause()\n"
    )
    program.chmod(0o755)
    command = [RUNTIME, "create", "-b", gpu_bundle.directory, "c1"]
    env = environment(program, gpu_bundle)
    ignore = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    with subprocess.Popen(
        command,
        env=env,
        cwd=gpu_bundle.directory,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=ignore,  # noqa: PLW1509 - this test has one thread
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid} True\n"
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
    assert process.returncode == 7
    assert "createRuntime" in (gpu_bundle.directory / "config.json").read_text()


def test_the_hook_finds_a_configuration_that_was_named_relatively(recorder, gpu_bundle) -> None:
    settings = gpu_bundle.settings
    env = environment(recorder, gpu_bundle, NVHOOK_CONFIG=settings.name)
    done = call(
        RUNTIME, "create", "-b", str(gpu_bundle.directory), "c1", cwd=settings.parent, env=env
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((gpu_bundle.directory / "config.json").read_text())
    assert str(settings) in document["hooks"]["createRuntime"][0]["args"]


def call_from_nowhere(directory: Path, env: dict[str, str], *words: str):
    """Call nvhook-runtime in a working directory that has been removed."""
    script = 'mkdir removed && cd removed && rmdir ../removed && exec "$0" "$@"'
    return call(Path("/bin/sh"), "-c", script, str(RUNTIME), *words, cwd=directory, env=env)


def test_the_working_directory_does_not_count_where_it_is_not_needed(gpu_bundle) -> None:
    bundle, env = gpu_bundle.directory, environment(Path("/bin/true"), gpu_bundle)
    done = call_from_nowhere(bundle, env, "create", "-b", str(bundle), "c1")
    assert done.returncode == 0, done.stderr
    assert "createRuntime" in (bundle / "config.json").read_text()


@pytest.mark.parametrize("bad", ["relative configuration", "long bundle"])
def test_a_path_that_can_not_be_known_is_refused(recorder, gpu_bundle, bad) -> None:
    before = (gpu_bundle.directory / "config.json").read_bytes()
    bundle = str(gpu_bundle.directory)
    env = environment(recorder, gpu_bundle)
    if bad == "long bundle":
        bundle += "/" * (4090 - len(bundle))
    else:
        env = environment(recorder, gpu_bundle, NVHOOK_CONFIG="config.toml")
    done = call_from_nowhere(gpu_bundle.directory, env, "create", "-b", bundle, "c1")
    assert done.returncode == 1
    assert done.stderr.startswith("nvhook: the bundle's ")
    assert (gpu_bundle.directory / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "--bundle", "{bundle}", "c1"],
        ["create", "--bundle={bundle}", "c1"],
        ["create", "-bundle", "{bundle}", "c1"],
        ["create", "-b", "{bundle}", "c1"],
        ["create", "-b={bundle}", "c1"],
        ["create", "-b{bundle}", "c1"],
        ["create", "c1", "--bundle", "{bundle}"],
        ["create", "-b", "/nowhere", "-b", "{bundle}", "c1"],
        ["create", "--pid-file", "-b", "-b", "{bundle}", "c1"],
        ["create", "--console-socket", "run", "--bundle", "{bundle}", "exec"],
        ["--root", "state", "--log", "delete", "--debug", "create", "-b", "{bundle}", "c1"],
        ["--systemd-cgroup", "--rootless", "exec", "run", "-d", "-b", "{bundle}", "c1"],
        ["--cgroup-manager", "list", "create", "-b", "../{name}/.", "c1"],
        ["run", "--keep", "--no-pivot", "--preserve-fds", "2", "--bundle", "./", "c1"],
        ["create", "c1"],
        ["create", "--bundle=", "c1"],
        ["create", "-b", "", "c1"],
        ["create", "--config", "config.json", "c1"],
        ["create", "-b", "/nowhere", "-f", "{bundle}/config.json", "c1"],
        ["create", "-b", "/nowhere", "-f", "./config.json", "c1"],
        ["--log-level", "exec", "create", "-b", "{bundle}", "c1"],
    ],
    ids=" ".join,
)
def test_the_bundle_is_found_as_the_runtime_finds_it(recorder, gpu_bundle, arguments) -> None:
    words = {"bundle": gpu_bundle.directory, "name": gpu_bundle.directory.name}
    done = call(
        RUNTIME,
        *[each.format(**words) for each in arguments],
        cwd=gpu_bundle.directory,
        env=environment(recorder, gpu_bundle),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--delegated" in (gpu_bundle.directory / "config.json").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["state", "create"],
        ["exec", "c1", "create", "-b", "."],
        ["--root", "create", "delete", "c1"],
        ["--log", "run", "start", "run"],
        ["restore", "-b", ".", "c1"],
        ["create", "-b", "/nowhere", "c1"],
        ["create", "--bundle=/nowhere", "c1"],
        ["--version"],
        ["--help"],
        ["features"],
        [],
    ],
    ids=" ".join,
)
def test_what_creates_nothing_here_changes_nothing(recorder, gpu_bundle, arguments) -> None:
    document = gpu_bundle.directory / "config.json"
    before = document.read_bytes(), document.stat().st_mtime_ns
    env = environment(recorder, gpu_bundle)
    assert call(RUNTIME, *arguments, cwd=gpu_bundle.directory, env=env).returncode == 0
    assert (document.read_bytes(), document.stat().st_mtime_ns) == before


# ---- which runtime ----


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("", "one"),
        ('handler.runtimes = ["one", "two"]', "one"),
        ("handler.runtimes=['absent' , \"two\",]", "two"),
        ('x = 1\n[handler] # here\n  runtimes = [ "{place}/two" ] # "one"', "two"),
        ('# handler.runtimes = ["two"]', "one"),
        ('log-path = "a" # runtimes', "one"),
        ('log-path = "/var/log/runtimes"\nhandler.runtimes = ["two"]', "two"),
        ('cdi-spec-directories = [\n"/opt/runtimes/cdi",\n]', "one"),
        ('"handler" = { runtimes = ["two"] }', "is not understood"),
        ('handler.runtimes = ["absent"]', "none of handler.runtimes in the configuration is found"),
        ("handler.runtimes = []", "none of handler.runtimes"),
        ('handler.runtimes = [\n"two"]', "handler.runtimes in the configuration is not understood"),
        ('handler = { runtimes = ["two"] }', "is not understood"),
        ('handler.runtimes = ["\\u0074wo"]', "is not understood"),
        ('[other]\nruntimes = ["two"]', "is not understood"),
        ('handler.runtimes = ["two"', "is not understood"),
    ],
)
def test_the_runtime_is_the_first_one_found(place, settings, says) -> None:
    for name in ("one", "two"):
        (place / name).write_text(f"#!/bin/sh\necho {name}\n")
        (place / name).chmod(0o755)
    (place / "runc").symlink_to("one")
    config = place / "config.toml"
    config.write_text(settings.replace("{place}", str(place)))
    env = {"PATH": f"{place}:/bin", "NVHOOK_CONFIG": str(config)}
    done = call(RUNTIME, "state", "c1", cwd=place, env=env)
    if says in {"one", "two"}:
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{says}\n", "")
    else:
        assert (done.returncode, done.stdout) == (127, "")
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


def test_it_never_calls_itself(place) -> None:
    (place / "runc").symlink_to(RUNTIME)
    env = {"PATH": str(place), "NVHOOK_RUNTIME": str(place / "runc")}
    done = call(RUNTIME, "--version", cwd=place, env=env)
    assert done.returncode == 127
    assert "NVHOOK_RUNTIME is not found" in done.stderr
    # As runc on PATH, the one behind it is meant.
    found = call(RUNTIME, "--version", cwd=place, env={"PATH": str(place)}, timeout=10)
    assert re.match(r"nvhook-runtime version \S+\nrunc version ", found.stdout)


# ---- a whole life, by runc and by nvhook-runtime ----

# Placeholders for what differs from one life to the next.
VARIABLE = (
    (r" {2,}", "  "),
    (r'"created": ?"[^"]*"', '"created":WHEN'),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "WHEN"),
    (r'time="[^"]*"', "WHEN"),
    (r"\bnvhook-runtime-\d+-\S+?-bundle\d+(-\w+)?\b", "NAME"),
    (r'("(?:pid|init_process_pid)": ?)\d+', r"\1PID"),
    (r"^(root|\d+) +\d+ .*$", "PROCESS"),
    (r"(?<=[\[,:])\d+", "N"),
    (r"\b\d{2,}\b", "N"),
)
LIFE = [
    (["create", "--bundle", "{bundle}", "--pid-file", "{bundle}/pid", "{name}"], 0),
    (["create", "--bundle", "{bundle}", "{name}"], 1),
    (["state", "{name}"], 0),
    (["start", "{name}"], 0),
    (["start", "{name}"], 1),
    (["list"], 0),
    (["list", "--quiet"], 0),
    (["exec", "{name}", "/bin/sh", "-c", "echo out; echo err >&2; exit 5"], 5),
    (["exec", "--env", "A=b", "--cwd", "/tmp", "{name}", "/bin/sh", "-c", "echo $A; pwd"], 0),
    (["exec", "{name}", "/absent"], 255),
    (["ps", "{name}"], 0),
    (["ps", "--format", "json", "{name}"], 0),
    (["pause", "{name}"], 0),
    (["state", "{name}"], 0),
    (["resume", "{name}"], 0),
    (["update", "--pids-limit", "50", "{name}"], 0),
    (["events", "--stats", "{name}"], 0),
    (["checkpoint", "--image-path", "{bundle}/image", "--work-path", "{bundle}", "{name}"], 1),
    (["kill", "{name}", "NOSUCH"], 1),
    (["kill", "{name}", "KILL"], 0),
    (["delete", "--force", "{name}"], 0),
    (["state", "{name}"], 1),
    (["delete", "{name}"], 1),
    (["features"], 0),
    (["--version"], 0),
    (["--help"], 0),
    (["create", "--help"], 0),
    (["nonsense"], 3),
    (["spec", "--bundle", "{spec}"], 0),
]


def _live(engine, bundle, command: list) -> list[tuple[str, int, str, str]]:
    """Lead a container's life by a command; return what each call said."""
    told = []
    spec = bundle.directory / "spec"
    spec.mkdir(exist_ok=True)
    (spec / "config.json").unlink(missing_ok=True)
    words = {"bundle": bundle.directory, "name": bundle.name, "spec": spec}
    output = bundle.directory / "output"
    for arguments, _ in LIFE:
        output.write_text("")
        call_words = [str(each).format(**words) for each in arguments]
        # With files: a container keeps the pipes of its creator open.
        script = 'exec "$@" <"$0" >"$0.out" 2>"$0.err"'
        done = engine.view.run("sh", "-c", script, output, *command, *call_words, check=False)
        texts = [Path(f"{output}.{kind}").read_text() for kind in ("out", "err")]
        for pattern, replacement in VARIABLE:
            texts = [re.sub(pattern, replacement, text, flags=re.MULTILINE) for text in texts]
        told.append((" ".join(arguments), done.returncode, *texts))
    told.append(("the specification", 0, (spec / "config.json").read_text(), ""))
    return told


def test_a_whole_life_is_the_same(runc, bundles) -> None:
    through = ["env", f"NVHOOK_RUNTIME={runc.command[0]}", RUNTIME, *runc.command[1:]]
    bundle = bundles(runc)
    bundle.config.pop("hooks")
    bundle.args("/bin/sleep", "100")
    bundle.write()
    direct, other = [_live(runc, bundle, command) for command in (runc.command, through)]
    own = r"nvhook-runtime version \S+\n"
    other = [(name, code, re.sub(own, "", out), err) for name, code, out, err in other]
    for expected, seen in zip(direct, other, strict=True):
        assert seen == expected
    statuses = {name: code for name, code, _, _ in direct[:-1]}
    asked = {" ".join(arguments): status for arguments, status in LIFE}
    assert statuses == asked
