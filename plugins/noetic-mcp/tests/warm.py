"""The server of `served.py` as a program that starts at once: a process that has imported it forks it each time.

The official SDK takes a second of computing to import, and most tests start a server or two. What a test starts is a
small program that hands its pipes and its environment to the fork. It ends when the fork does, and the fork with it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from functools import cache

__all__ = ["command"]


@cache
def command() -> tuple[str, ...]:
    """The program to start, once there is a process that forks for it; that process ends with this one."""
    folder = tempfile.mkdtemp()
    where = f"{folder}/warm"
    process = subprocess.Popen(
        [sys.executable, __file__, "serve", where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout.readline()
    process.stdout.close()
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    assert said == b"ready\n", said
    return (sys.executable, "-I", "-S", __file__, "attach", where)


def attach(where: str) -> int:
    """Be the program that a test has started."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(where)
        environment = json.dumps(dict(os.environ)).encode()
        socket.send_fds(connection, [len(environment).to_bytes(4)], [0, 1, 2])
        connection.sendall(environment)
        # The fork alone holds the pipes now.
        os.close(0)
        os.close(1)
        return int(connection.recv(8) or b"1")


def serve(where: str) -> None:
    """Fork for each that attaches, until standard input ends."""
    import served  # noqa: F401  # what every fork has imported then

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(where)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while 0 not in select.select([listening.fileno(), 0], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    watch(connection)


def watch(connection: socket.socket) -> None:
    """Fork a server and say when it has ended; never returns."""
    size, pipes, _, _ = socket.recv_fds(connection, 4, 3)
    environment = connection.recv(int.from_bytes(size), socket.MSG_WAITALL)
    ended, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        run(pipes, json.loads(environment))
    for handle in (alive, *pipes):
        os.close(handle)
    # The program that the test has started says nothing more, and is gone when there is something to read.
    if connection.fileno() in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(str(status % 256).encode())
    os._exit(0)


def run(pipes: list[int], environment: dict[str, str]) -> None:
    """Be the server; never returns."""
    import served

    for number, handle in enumerate(pipes):
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    try:
        served.server.run("stdio")
    except BaseException:  # noqa: BLE001  # it may end the fork alone
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "attach":
        sys.exit(attach(sys.argv[2]))
    serve(sys.argv[2])
