"""Programs that start at once: a process that has imported what they need forks each of them.

To import the library takes half a second of computing, and the official SDK of MCP a second. What a test starts is a
small program that hands its pipes, environment, folder and arguments to the fork. It ends when the fork does, and the
fork with it. What signals and terminals do to a program is tested without it.
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
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

__all__ = ["forked"]

ROOT = Path(__file__).parent.parent


@cache
def forked(module: str, *options: str) -> Sequence[str]:
    """What to start in place of `python <options> -m <module>`; the process that forks for it ends with this one.

    Args:
        module: A module that imports what the program needs. Its function `main` runs it and may return its exit code.
        options: Options of the interpreter.
    """
    folder = tempfile.mkdtemp()
    where = f"{folder}/warm"
    command = [sys.executable, *options, __file__, "serve", where, module]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout.readline()
    process.stdout.close()
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    assert said == b"ready\n", said
    return (sys.executable, "-I", "-S", __file__, "attach", where)


def attach(where: str, arguments: list[str]) -> int:
    """Be the program that a test has started."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(where)
        given = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(connection, [len(given).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(given)
        # The fork alone holds the pipes now.
        os.close(0)
        os.close(1)
        return int(connection.recv(8) or b"1")


def serve(where: str, module: str) -> None:
    """Fork for each that attaches, until standard input ends."""
    import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(where)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while 0 not in select.select([listening.fileno(), 0], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listening.close()
                watch(connection, module)
            connection.close()


def watch(connection: socket.socket, module: str) -> None:
    """Fork the program and say when it has ended; never returns."""
    size, pipes, _, _ = socket.recv_fds(connection, 4, 3)
    given = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    ended, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.close(ended)
        run(pipes, module, *json.loads(given))
    for handle in (alive, *pipes):
        os.close(handle)
    # The program that the test has started says nothing more, and is gone when there is something to read.
    if connection.fileno() in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(str(status % 256).encode())
    os._exit(0)


def run(pipes: list[int], module: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the program; it ends as Python does."""
    for number, handle in enumerate(pipes):
        os.dup2(handle, number)
        os.close(handle)
    # Those that were there remember what kind of file they had.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    found = import_module(module)
    sys.argv = [str(found.__file__), *arguments]
    sys.path[0] = folder
    sys.exit(found.main())


if __name__ == "__main__":
    if sys.argv[1] == "attach":
        sys.exit(attach(sys.argv[2], sys.argv[3:]))
    serve(*sys.argv[2:])
