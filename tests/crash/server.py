"""A process that has imported everything, runs no event loop and no thread, and forks a child for each job.

It speaks lines of JSON. `["start", job, arguments]` forks a child that runs the job and answers its pid; `["event",
[pid, ...], seconds]` waits for the first thing that one of the children says, or for the end of one. A child says lines
of JSON, the last of which is what its job returned; when it died of a signal there is none.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

Say: TypeAlias = Callable[[Any], None]
Job: TypeAlias = Callable[[Any, Say], Any]


class Child:
    """A child, and what it has said that nobody has asked for yet."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self.handle = handle
        self.buffer = b""
        self.over = False

    def line(self) -> bytes | None:
        found, cut, rest = self.buffer.partition(b"\n")
        if not cut:
            return None
        self.buffer = rest
        return found

    def read(self) -> None:
        data = os.read(self.handle, 1 << 16)
        self.buffer += data
        self.over = not data


def load(job: str) -> Job:
    """The function that a job is named after, `module:function`."""
    module, _, name = job.partition(":")
    found: Job = getattr(import_module(module), name)
    return found


def run_child(job: Job, arguments: Mapping[str, Any], handle: int) -> None:
    """What the child does instead of everything else; never returns."""

    def say(what: Any) -> None:
        data = json.dumps(what).encode() + b"\n"
        while data:
            data = data[os.write(handle, data) :]

    status = 0
    try:
        say(["result", job(arguments, say)])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # whatever it was, the parent is told
        say(["error", traceback.format_exc()])
        status = 70
    os._exit(status)


class Server:
    """Forks, and listens to what was forked."""

    def __init__(self) -> None:
        self.children: dict[int, Child] = {}

    def start(self, name: str, arguments: Mapping[str, Any]) -> int:
        job = load(name)
        ours, its = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.close(ours)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            run_child(job, arguments, its)
        os.close(its)
        self.children[pid] = Child(pid, ours)
        return pid

    def event(self, pids: list[int], seconds: float | None) -> Any:
        children = [self.children[pid] for pid in pids]
        while True:
            for child in children:
                line = child.line()
                if line is not None:
                    return [child.pid, json.loads(line)]
                if child.over:
                    return [child.pid, ["end", self.bury(child)]]
            ready, _, _ = select.select([child.handle for child in children], [], [], seconds)
            if not ready:
                return [0, ["nothing"]]
            for child in children:
                if child.handle in ready:
                    child.read()

    def bury(self, child: Child) -> int:
        del self.children[child.pid]
        os.close(child.handle)
        return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def main() -> None:
    """Serve until nobody asks any more."""
    for module in sys.argv[1:]:
        import_module(module)
    # What is there now stays as it is in every child, and costs it no copy.
    gc.collect()
    gc.freeze()
    server = Server()
    for line in sys.stdin:
        command, *rest = json.loads(line)
        answer = server.start(*rest) if command == "start" else server.event(*rest)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in server.children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
