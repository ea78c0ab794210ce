"""One interpreter for both doors: the runtime's stays a moment to do the work of the bundle's hook.

A fork of the process that edited the bundle loads the hook's modules while the real runtime creates
the container, and waits on a socket. The launcher, called as the hook, hands it the state and ends
with its answer (_native/handoff.c); where nobody listens or accepts, it starts Python as ever. It
serves one hook, and ends without it when the process that creates the container does.
"""

import posix
import sys

from nvhook import state_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from nvhook.log import Log

ACCEPTED = b"A"
# Seconds until the hook is called: others may come first. A `run` goes on as long as its container.
PATIENCE = 30
# What a hook sees must be what this process sees: paths, process numbers, users, cgroups.
_NAMESPACES = ("mnt", "pid", "user", "cgroup")


def offer(bundle: str, arguments: list[str], log: "Log") -> None:
    """Fork the process that will do a hook's work; where it can't be, nothing is different.

    arguments: the hook's, after ``nvhook hook``. The caller's parent creates the container. Returns
    when the process listens and holds nothing of the engine's any more.
    """
    if b"NVHOOK_DEBUG" in posix.environ:
        return  # who debugs wants tracebacks with their lines
    parent = posix.getppid()
    try:
        creator = posix.pidfd_open(parent)
        status = posix.stat(bundle)
        reader, writer = posix.pipe()
        if posix.getppid() != parent:
            return
        if posix.fork():
            posix.close(writer)
            posix.read(reader, 1)  # nothing comes but the end
            return
    except (AttributeError, OSError) as error:  # pidfd_open: a Python made for an older Linux
        log.debug("no handoff", why=error)
        return
    try:
        _wait(creator, writer, (status.st_dev, status.st_ino), arguments)
    except OSError as error:
        log.debug("no handoff", why=error)
    except Exception as error:  # noqa: BLE001 - a bug; the hook starts Python itself
        log.warning("no handoff", why=f"{type(error).__name__}: {error}")
    finally:
        posix._exit(0)


def _wait(creator: int, ready: int, bundle: tuple[int, int], arguments: list[str]) -> None:
    """Be there for one hook of a bundle (device and inode number); close ready when listening."""
    posix.setsid()  # a terminal's signals are for the runtime
    posix.chdir("/")
    null = posix.open("/dev/null", posix.O_RDWR)
    for standard in range(3):
        posix.dup2(null, standard)
    _close_all_but(creator, ready)
    import _socket

    path = f"{state_file.DIRECTORY}/handoff-{bundle[0]}-{bundle[1]}"
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    inode = _listen(listener, path)
    posix.close(ready)
    try:
        _load_hook()
        caller = _accept(listener, creator)
    finally:
        _remove(path, inode)
        listener.close()
    if caller is not None:
        _serve(caller, bundle, arguments)


def _close_all_but(*kept: int) -> None:
    for name in posix.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                posix.close(fd)
            except OSError:
                pass  # the listing's own


def _listen(listener: "socket", path: str) -> int:
    """Listen at a path, where only root may connect; return the socket file's inode number."""
    temporary = f"{path}.{posix.urandom(6).hex()}"
    umask = posix.umask(0o177)
    try:
        try:
            listener.bind(temporary)
        except FileNotFoundError:
            state_file.make_directory(state_file.DIRECTORY)
            listener.bind(temporary)
    finally:
        posix.umask(umask)
    try:
        listener.listen(1)
        inode = posix.stat(temporary).st_ino
        posix.rename(temporary, path)
    except OSError:
        posix.unlink(temporary)
        raise
    return inode


def _remove(path: str, inode: int) -> None:
    """Remove a socket file unless it is another's: a bundle may be created twice at once."""
    try:
        if posix.stat(path).st_ino == inode:
            posix.unlink(path)
    except FileNotFoundError:
        pass


def _load_hook() -> None:
    """Load what the hook needs: from its archive, where this process runs the runtime's."""
    load = getattr(sys.modules["__main__"], "load", None)  # hot_start's
    if load is not None:
        load(sys.argv[1], "hook")
    import nvhook.executor
    import nvhook.hook
    import nvhook.target  # noqa: F401 - loaded before they are needed


def _accept(listener: "socket", creator: int) -> "socket | None":
    """Return the first who connects; None if the creator ends, or nobody comes in time."""
    import _socket
    import select

    either = select.poll()
    either.register(listener.fileno(), select.POLLIN)
    either.register(creator, select.POLLIN)
    if listener.fileno() not in dict(either.poll(PATIENCE * 1000)):
        return None
    fd, _ = listener._accept()  # type: ignore[attr-defined]
    return _socket.socket(fileno=fd)


def _serve(caller: "socket", bundle: tuple[int, int], arguments: list[str]) -> None:
    """Do the hook's work, if it is the hook of the bundle that was edited, and answer."""
    from _io import StringIO

    from nvhook import hook
    from nvhook.errors import NvhookError
    from nvhook.formats.oci import MAX_STATE, parse_state

    caller.settimeout(PATIENCE)
    words = "".join(f"{argument}\0" for argument in [*arguments, ""])
    expected = words.encode("utf-8", "surrogateescape")
    request = _receive(caller, len(expected) + MAX_STATE + 1)
    state = request[len(expected) :]
    try:
        status = posix.stat(parse_state(state).bundle)
        known = _is_beside(caller)
    except NvhookError:
        return
    if not known or not request.startswith(expected) or (status.st_dev, status.st_ino) != bundle:
        return
    caller.sendall(ACCEPTED)
    errors = sys.stderr = StringIO()
    code = hook.run(arguments, state)
    # Before the answer: the runtime, and who calls it, may want the container's mounts back.
    _close_all_but(caller.fileno())
    caller.sendall(bytes([code]) + errors.getvalue().encode("utf-8", "backslashreplace"))
    caller.close()


def _is_beside(caller: "socket") -> bool:
    """Tell whether a caller is the same user in the same namespaces."""
    import _socket

    from nvhook.kernel.process import Process

    numbers = caller.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(numbers[at : at + 4], sys.byteorder) for at in (0, 4))
    if uid != posix.geteuid() or pid == 0:
        return False
    process = Process(pid)
    return all(process.shares_namespace(name) for name in _NAMESPACES)


def _receive(caller: "socket", limit: int) -> bytes:
    """Return what a caller sends, up to a limit of bytes."""
    data = b""
    while len(data) < limit and (chunk := caller.recv(min(1 << 16, limit - len(data)))):
        data += chunk
    return data
