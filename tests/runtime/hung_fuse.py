"""A FUSE file system that stops answering, in a container."""

import os
import select
import struct
import subprocess
import threading

INIT = 26
# struct fuse_init_out of linux/fuse.h, protocol 7.31.
INIT_OUT = "<IIIIHHIIHHI28x"


class HungFuse:
    """It is mounted when made. ``greets``: it answers the kernel's first request, and no other.

    The kernel can end a process that waits for one that never read a request, but none that waits
    for an answer.
    """

    def __init__(self, pid: int, place: str, greets: bool) -> None:
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        self.inside = ["nsenter", "--mount", "--root", "--target", str(pid), "/bin/busybox"]
        self.place = place
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        command = [*self.inside, "mount", "-t", "fuse", "-o", options, "hung", place]
        subprocess.run(command, check=True, pass_fds=[self.fd])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        if greets:
            self._thread.start()

    def _serve(self) -> None:
        readable = select.poll()
        readable.register(self.fd, select.POLLIN)
        try:
            while not self._ended.is_set():
                if not readable.poll(100):
                    continue
                try:
                    request = os.read(self.fd, 1 << 18)
                except BlockingIOError:  # who asked has gone
                    continue
                _, opcode, unique = struct.unpack_from("<IIQ", request)
                if opcode == INIT:
                    body = struct.pack(INIT_OUT, 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
                    head = struct.pack("<IiQ", 16 + len(body), 0, unique)
                    os.write(self.fd, head + body)
        except OSError:
            pass  # it was ended

    def end(self) -> None:
        """Let all who wait go, with an error, and unmount."""
        command = [*self.inside, "umount", "-l", self.place]
        subprocess.run(command, check=True)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()  # before another file has the descriptor's number
        os.close(self.fd)
