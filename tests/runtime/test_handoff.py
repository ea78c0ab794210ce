"""The interpreter that edited a bundle does the work of its hook, and is nobody's burden."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvhook import handoff
from tests.runtime.bundle import MAPPED, Bundle
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches

LAUNCHER = Path(sysconfig.get_path("scripts")) / "nvhook"
RUNTIME = LAUNCHER.with_name("nvhook-runtime")
DIRECTORY = Path("/run/nvhook")
# A runtime that tells when it runs, lets go of what it was given, and stays.
SLEEPER = """#!/bin/sh
exec </dev/null >/dev/null 2>&1
exec sleep 60
"""
NOT_A_CONTAINER = "is in the host's mount namespace: not a container"


def waiting(bundle: Bundle) -> list[int]:
    """Return the interpreters that wait for a bundle's hook."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "runtime" in words and str(bundle.directory) in words and words[0] != "pgrep":
            found.append(int(path.parent.name))
    return found


def the_waiting(bundle: Bundle) -> int:
    """Return the one that listens for a bundle's hook, once the one that edited has ended."""
    wait_for(lambda: socket_path(bundle).exists() and len(waiting(bundle)) == 1)
    [pid] = waiting(bundle)
    return pid


def socket_path(bundle: Bundle) -> Path:
    status = bundle.directory.stat()
    return DIRECTORY / f"handoff-{status.st_dev}-{status.st_ino}"


def left(bundle: Bundle) -> list[object]:
    """Return what is there of a handoff: processes and socket files."""
    return [*waiting(bundle), *DIRECTORY.glob(f"{socket_path(bundle).name}*")]


def wait_for(condition: Callable[[], bool], limit: float = 10) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def assert_nothing_is_left(bundle: Bundle) -> None:
    wait_for(lambda: left(bundle) == [])


def injected_by(log: str) -> list[int]:
    """Return the processes that did the work."""
    return [int(pid) for pid in re.findall(r" pid=(\d+) msg=injected ", log)]


def who_waits(bundle: Bundle) -> str:
    """Return a shell command that prints the process that waits for a bundle's hook."""
    return f"pgrep -f '[_]hot/.*/start.pyc .* runtime {bundle.directory} '"


@pytest.fixture
def gpu_bundle(runc, bundles) -> Iterator[Bundle]:
    bundle = bundles(runc)
    bundle.config.pop("hooks")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.write()
    yield bundle
    assert_nothing_is_left(bundle)


@contextmanager
def created(bundle: Bundle, script: str = SLEEPER) -> Iterator[subprocess.Popen[str]]:
    """Call nvhook-runtime in front of a runtime that does nothing."""
    program = bundle.directory / "sleeper"
    program.write_text(script)
    program.chmod(0o755)
    chosen = {"NVHOOK_RUNTIME": str(program), "NVHOOK_CONFIG": str(bundle.settings)}
    with subprocess.Popen(
        [RUNTIME, "create", "-b", bundle.directory, "c1"],
        env={"PATH": "/usr/bin:/bin", **chosen},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def waiter(gpu_bundle) -> Iterator[int]:
    """An interpreter that waits for the bundle's hook."""
    with created(gpu_bundle):
        yield the_waiting(gpu_bundle)


def arguments_of(bundle: Bundle) -> list[str]:
    return ["createRuntime", "--delegated", "--config", str(bundle.settings)]


def state_of(bundle: Bundle, pid: int = 0) -> bytes:
    state = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": pid or os.getpid()}
    return json.dumps(state | {"bundle": str(bundle.directory)}).encode()


def call_hook(bundle: Bundle, *prefix: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, LAUNCHER, "hook", *arguments_of(bundle)],
        input=state_of(bundle).decode(),
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def logged_errors(bundle: Bundle) -> list[int]:
    """Return the processes that logged an error."""
    return [int(pid) for pid in re.findall(r"level=error pid=(\d+) ", bundle.logged())]


# ---- real containers ----


def with_witness(bundle: Bundle, script: str) -> None:
    bundle.config["hooks"] = {"createRuntime": [bundle.shell_hook(script)]}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)


@pytest.mark.parametrize("user_namespace", [False, True], ids=["", "user-namespace"])
def test_the_interpreter_that_edited_does_the_work(each_handler, bundles, user_namespace) -> None:
    bundle = bundles(each_handler)
    seen = bundle.directory / "seen"
    with_witness(bundle, f"{who_waits(bundle)} >{seen}")
    if user_namespace:
        bundle.use_user_namespace(owned=True)

    result = each_handler.start(bundle)

    assert_reaches(bundle, result, (1,), COMPUTE)
    assert injected_by(result.log) == [int(pid) for pid in seen.read_text().split()]
    assert_nothing_is_left(bundle)


@pytest.mark.parametrize(
    "loss",
    ["kill -9 $({who}); sleep 0.1", "kill -STOP $({who}); rm {socket}", "rm {socket}"],
    ids=["killed", "stopped", "no-socket"],
)
def test_without_it_the_hook_starts_python(handler, bundles, loss) -> None:
    bundle = bundles(handler)
    seen = bundle.directory / "seen"
    words = {"who": who_waits(bundle), "socket": socket_path(bundle)}
    with_witness(bundle, f"{who_waits(bundle)} >{seen}; {loss.format(**words)}")

    result = handler.start(bundle)
    for pid in waiting(bundle):
        os.kill(pid, signal.SIGCONT)

    assert_reaches(bundle, result, (1,), COMPUTE)
    [gone], [done] = [int(pid) for pid in seen.read_text().split()], injected_by(result.log)
    assert done != gone
    socket_path(bundle).unlink(missing_ok=True)  # of the killed one
    assert_nothing_is_left(bundle)


def test_a_state_directory_that_can_not_be_written(handler, bundles) -> None:
    bundle = bundles(handler)
    with_witness(bundle, f"{who_waits(bundle)} >{bundle.directory}/seen; true")
    handler.view.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", DIRECTORY)
    try:
        result = handler.start(bundle)
    finally:
        handler.view.run("umount", DIRECTORY)

    assert_reaches(bundle, result, (1,), COMPUTE)
    assert (bundle.directory / "seen").read_text() == ""


def test_a_state_directory_that_is_not_there_yet(handler, bundles) -> None:
    bundle = bundles(handler)
    seen = bundle.directory / "seen"
    with_witness(bundle, f"{who_waits(bundle)} >{seen}; stat -c %a {DIRECTORY} >>{seen}")
    handler.view.run("mount", "-t", "tmpfs", "tmpfs", "/run")
    try:
        result = handler.start(bundle)
    finally:
        handler.view.run("umount", "/run")

    assert [*map(str, injected_by(result.log)), "755"] == seen.read_text().split()


def test_a_stale_socket_is_replaced(handler, bundles) -> None:
    bundle = bundles(handler)
    seen = bundle.directory / "seen"
    with_witness(bundle, f"{who_waits(bundle)} >{seen}")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(socket_path(bundle)))

    result = handler.start(bundle)

    assert injected_by(result.log) == [int(seen.read_text())]
    assert_nothing_is_left(bundle)


def test_a_hook_that_is_called_twice_changes_nothing_more(handler, bundles) -> None:
    bundle = bundles(handler)
    hook = " ".join([str(LAUNCHER), "hook", *arguments_of(bundle)])
    bundle.config["hooks"] = {
        "createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", f"exec {hook}"]}]
    }
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)

    result = handler.start(bundle)

    assert_reaches(bundle, result, (1,), COMPUTE)
    first, second = injected_by(result.log)
    assert first != second
    assert_nothing_is_left(bundle)


def test_its_error_is_the_hooks(handler, bundles) -> None:
    """What only the hook sees: a link in the image."""
    bundle = bundles(handler)
    machine = os.uname().machine
    bundle.put(f"/lib/ld-musl-{machine}.so.1", b"\x7fELF")
    bundle.link(f"/etc/ld-musl-{machine}.path", "/etc/other")
    seen = bundle.directory / "seen"
    with_witness(bundle, f"{who_waits(bundle)} >{seen}")

    error = handler.fail(bundle)

    assert "symbolic link" in error
    assert logged_errors(bundle) == [int(seen.read_text())]
    assert_nothing_is_left(bundle)


@pytest.mark.parametrize("user_namespace", [False, True], ids=["root", "userns"])
def test_what_takes_a_helper_program_works_there(handler, bundles, debian, user_namespace) -> None:
    """A damaged loader cache is rebuilt by a confined ldconfig."""
    bundle = bundles(handler, debian)
    (bundle.seen_root / "etc/ld.so.cache").write_bytes(b"damaged")
    seen = bundle.directory / "seen"
    with_witness(bundle, f"{who_waits(bundle)} >{seen}")
    bundle.args("/bin/sh", "-c", "/sbin/ldconfig -p | grep -c libcuda.so.1")
    if user_namespace:
        bundle.use_user_namespace(owned=True)

    result = handler.start(bundle)

    assert result.stdout == "1\n"
    assert injected_by(result.log) == [int(seen.read_text())]
    assert_nothing_is_left(bundle)


# ---- the one that waits ----


def test_it_holds_nothing_of_its_callers(gpu_bundle) -> None:
    """Whoever reads the runtime's output to its end does not wait for it."""
    with created(gpu_bundle) as process:
        pid = the_waiting(gpu_bundle)
        begun = time.monotonic()
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() + process.stderr.read() == ""
        assert time.monotonic() - begun < handoff.PATIENCE / 3
        held = sorted(os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
        held = [re.sub(r"\d+", "N", each) for each in held]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = socket_path(gpu_bundle).stat()

        assert held == ["/dev/null"] * 3 + ["anon_inode:[pidfd]", "socket:[N]"]
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        parent, group, session = map(int, fields[1:4])
        assert parent != process.pid
        assert (group, session) == (pid, pid)
        assert status.st_mode & 0o7777 == 0o600
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        assert children == ""


@pytest.mark.parametrize("ends", ["exit 1", "exit 0"])
def test_it_ends_with_a_creation_that_does_not_call_the_hook(gpu_bundle, ends) -> None:
    with created(gpu_bundle, f"#!/bin/sh\n{ends}\n") as process:
        assert process.wait(timeout=10) == int(ends.split()[1])
        assert_nothing_is_left(gpu_bundle)


def test_it_ends_with_a_creation_that_is_killed(gpu_bundle) -> None:
    with created(gpu_bundle) as process:
        wait_for(socket_path(gpu_bundle).exists)
        process.kill()
        assert_nothing_is_left(gpu_bundle)


def test_a_creation_that_is_killed_at_any_time_leaves_nothing(gpu_bundle) -> None:
    for delay in range(0, 40, 2):
        with created(gpu_bundle) as process:
            time.sleep(delay / 1000)
            process.kill()
        assert_nothing_is_left(gpu_bundle)


OFFER = """
import posix, sys
sys.path.append(sys.argv[1])
from nvhook import handoff
from nvhook.log import Log
handoff.PATIENCE = float(sys.argv[2])
posix.seteuid(int(sys.argv[3]))
handoff.offer(sys.argv[4], sys.argv[5:], Log(""))
"""


def offer(bundle: Bundle, patience: float, user: int = 0) -> None:
    """Offer the work in a child of this process, by the modules themselves."""
    site = str(Path(handoff.__file__).parents[1])
    words = [site, str(patience), str(user), str(bundle.directory), *arguments_of(bundle)]
    subprocess.run([os.path.realpath(sys.executable), "-I", "-S", "-c", OFFER, *words], check=True)


def offered(bundle: Bundle) -> bool:
    return socket_path(bundle).exists()


def test_it_has_not_more_than_patience(gpu_bundle) -> None:
    offer(gpu_bundle, 0.5)
    assert offered(gpu_bundle), "before the runtime can call the hook"
    wait_for(lambda: not offered(gpu_bundle), limit=5)


def test_it_serves_without_an_archive(gpu_bundle) -> None:
    offer(gpu_bundle, 5)

    done = call_hook(gpu_bundle)

    assert (done.returncode, NOT_A_CONTAINER in done.stderr) == (1, True)
    assert not offered(gpu_bundle)


def test_who_can_not_listen_there_offers_nothing(gpu_bundle) -> None:
    offer(gpu_bundle, 5, MAPPED)
    assert not offered(gpu_bundle)


def test_who_debugs_gets_a_python_of_his_own(gpu_bundle, waiter) -> None:
    done = call_hook(gpu_bundle, NVHOOK_DEBUG="1")

    assert "Traceback" in done.stderr
    assert logged_errors(gpu_bundle) != [waiter]
    assert waiting(gpu_bundle) == [waiter]


def test_the_answer_is_what_the_hook_says(gpu_bundle, waiter) -> None:
    done = call_hook(gpu_bundle)

    assert done.returncode == 1
    assert NOT_A_CONTAINER in done.stderr
    assert done.stderr.startswith("nvhook: ")
    assert done.stderr.count("\n") == 1
    assert logged_errors(gpu_bundle) == [waiter]


def test_a_bundle_that_is_created_twice_at_once(gpu_bundle) -> None:
    with created(gpu_bundle):
        first = the_waiting(gpu_bundle)
        inode = socket_path(gpu_bundle).stat().st_ino
        with created(gpu_bundle):
            wait_for(lambda: socket_path(gpu_bundle).stat().st_ino != inode)
            wait_for(lambda: len(waiting(gpu_bundle)) == 2)
            [second] = {*waiting(gpu_bundle)} - {first}

            done = [call_hook(gpu_bundle), call_hook(gpu_bundle)]

            assert [each.returncode for each in done] == [1, 1]
            served, other = logged_errors(gpu_bundle)
            assert served == second
            assert other not in {first, second}
            assert waiting(gpu_bundle) == [first]


def test_one_that_ends_leaves_the_socket_of_another(gpu_bundle) -> None:
    with created(gpu_bundle) as earlier:
        first = the_waiting(gpu_bundle)
        inode = socket_path(gpu_bundle).stat().st_ino
        with created(gpu_bundle):
            wait_for(lambda: socket_path(gpu_bundle).stat().st_ino != inode)
            earlier.kill()
            wait_for(lambda: first not in waiting(gpu_bundle))
            second = the_waiting(gpu_bundle)

            assert call_hook(gpu_bundle).returncode == 1
            assert logged_errors(gpu_bundle) == [second]


# ---- whom it serves ----


ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as caller:
    caller.connect(sys.argv[1])
    caller.sendall(bytes.fromhex(sys.argv[2]))
    caller.shutdown(socket.SHUT_WR)
    caller.settimeout(10)
    try:
        print(caller.recv(1))
    except ConnectionResetError:
        print(b"")
"""


def ask(bundle: Bundle, request: bytes, *prefix: str) -> str:
    """Send a request; return what is answered first."""
    command = [*prefix, sys.executable, "-c", ASK, str(socket_path(bundle)), request.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def request_of(arguments: list[str], state: bytes) -> bytes:
    return b"".join(each.encode() + b"\0" for each in [*arguments, ""]) + state


def test_it_accepts_the_hook_of_its_bundle(gpu_bundle, waiter) -> None:
    request = request_of(arguments_of(gpu_bundle), state_of(gpu_bundle))
    assert ask(gpu_bundle, request) == "b'A'"
    assert_nothing_is_left(gpu_bundle)


@pytest.mark.parametrize(
    "change",
    ["arguments", "more-arguments", "bundle", "state", "empty", "half", "huge"],
)
def test_it_refuses_what_is_not_its_hook(gpu_bundle, place, waiter, change) -> None:
    arguments, state = arguments_of(gpu_bundle), state_of(gpu_bundle)
    other = state.replace(str(gpu_bundle.directory).encode(), str(place).encode())
    assert other != state
    request = {
        "arguments": request_of([*arguments[:-1], arguments[-1][:-1] + "x"], state),
        "more-arguments": request_of([*arguments, "--cdi=all"], state),
        "bundle": request_of(arguments, other),
        "state": request_of(arguments, b"[1]"),
        "empty": b"",
        "half": request_of(arguments, state)[:-9],
        "huge": request_of(arguments, state.replace(b'"c1"', b'"' + b"c" * (1 << 20) + b'"')),
    }[change]
    if change == "huge":
        # More than an argument can hold.
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(socket_path(gpu_bundle)))
            caller.settimeout(10)
            try:
                caller.sendall(request)
                caller.shutdown(socket.SHUT_WR)
                answer = caller.recv(1)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
        assert answer == b""
    else:
        assert ask(gpu_bundle, request) == "b''"
    assert logged_errors(gpu_bundle) == []
    wait_for(lambda: waiting(gpu_bundle) == [])


@pytest.mark.parametrize(
    "prefix",
    [
        ("unshare", "--mount"),
        ("unshare", "--pid", "--fork", "--kill-child"),
        ("unshare", "--cgroup"),
        ("unshare", "--user", "--map-root-user"),
    ],
    ids=" ".join,
)
def test_it_refuses_who_is_in_another_namespace(gpu_bundle, waiter, prefix) -> None:
    request = request_of(arguments_of(gpu_bundle), state_of(gpu_bundle))
    assert ask(gpu_bundle, request, *prefix) == "b''"
    wait_for(lambda: waiting(gpu_bundle) == [])


def test_another_user_can_not_reach_it(gpu_bundle, waiter) -> None:
    prefix = ("setpriv", f"--reuid={MAPPED}", "--clear-groups", "--inh-caps=-all")
    request = request_of(arguments_of(gpu_bundle), state_of(gpu_bundle))
    command = [*prefix, "/usr/bin/python3", "-c", ASK, str(socket_path(gpu_bundle)), request.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    assert waiting(gpu_bundle) == [waiter]


def test_a_caller_that_says_nothing_does_not_keep_it(gpu_bundle) -> None:
    offer(gpu_bundle, 0.5)
    assert offered(gpu_bundle), "before the runtime can call the hook"
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(socket_path(gpu_bundle)))
        caller.settimeout(10)
        assert caller.recv(1) == b""


# ---- the launcher ----


@contextmanager
def impostor(bundle: Bundle, answer: bytes, user: int = 0) -> Iterator[None]:
    """Listen in the place of the interpreter, as some user, and answer one caller."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(bundle)))
        child = os.fork()
        if child == 0:
            try:
                os.seteuid(user)
                listener.listen(1)
                caller, _ = listener.accept()
                while caller.recv(1 << 16):
                    pass
                caller.sendall(answer)
            finally:
                os._exit(0)
    try:
        wait_for(lambda: "00010000" in _listening(socket_path(bundle)))
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        socket_path(bundle).unlink()


def _listening(path: Path) -> str:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return next((line for line in lines if line.endswith(f" {path}")), "")


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (b"A\0", 0, ""),
        (b"A\2nvhook: wrong\n", 2, "nvhook: wrong\n"),
        (b"A\1" + b"x" * 300 + b"\n", 1, "x" * 300 + "\n"),
        (b"A", 1, "nvhook: was killed while it gave the container its GPUs (hint: try again)\n"),
    ],
    ids=["done", "usage", "long", "killed"],
)
def test_the_launcher_ends_with_the_answer(gpu_bundle, answer, status, says) -> None:
    with impostor(gpu_bundle, answer):
        done = call_hook(gpu_bundle)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", says)
    assert gpu_bundle.logged() == "", "Python was started as well"


@pytest.mark.parametrize("answer", [b"", b"R\0"], ids=["none", "not-accepted"])
def test_the_launcher_starts_python_where_nothing_was_accepted(gpu_bundle, answer) -> None:
    with impostor(gpu_bundle, answer):
        done = call_hook(gpu_bundle)
    assert done.returncode == 1
    assert NOT_A_CONTAINER in done.stderr


def test_the_launcher_believes_only_its_own_user(gpu_bundle) -> None:
    with impostor(gpu_bundle, b"A\0", MAPPED):
        done = call_hook(gpu_bundle)
    assert done.returncode == 1
    assert NOT_A_CONTAINER in done.stderr


def test_a_state_without_a_bundle_is_pythons_to_refuse(gpu_bundle, waiter) -> None:
    done = subprocess.run(
        [LAUNCHER, "hook", *arguments_of(gpu_bundle)],
        input='{"id": "c1", "pid": 99}',
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "state has no bundle" in done.stderr
    assert waiting(gpu_bundle) == [waiter]
