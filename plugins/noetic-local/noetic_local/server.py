"""The child process: one model behind an OpenAI-compatible server on loopback, for as long as its parent lives.

It reads one JSON line from its standard input: `model_path`, `n_ctx`, `alias` and `api_key`. When the server listens it
writes one JSON line: `address` and `n_ctx`. It ends when its standard input closes, which the system does for it
whatever way the parent ends. It imports nothing of the framework, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any
from urllib.request import Request, urlopen

_THREADS = 1
"""More threads than free cores make the model more than ten times slower, and free cores are never certain."""


def start(config: dict[str, Any]) -> Any:
    """Load the model and open its server on a free port of 127.0.0.1.

    Args:
        config: `model_path`, `n_ctx`, `alias` and `api_key`.
    """
    # It has no type hints; imported so, no checker asks for them.
    xllamacpp: Any = import_module("xllamacpp")
    params: Any = xllamacpp.CommonParams()
    params.model.path = config["model_path"]
    params.model_alias = {config["alias"]}
    params.n_ctx = config["n_ctx"]
    params.n_parallel = 1
    params.cpuparams.n_threads = _THREADS
    params.cpuparams_batch.n_threads = _THREADS
    params.n_gpu_layers = 0
    params.use_jinja = True
    params.warmup = False
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config["api_key"]]
    params.ui = False
    params.verbosity = 0
    return xllamacpp.Server(params)


def context_size(address: str, api_key: str) -> int:
    """The tokens the server's context really has; it rounds what it was asked for.

    Args:
        address: The server's address.
        api_key: Its key.
    """
    request = Request(f"{address}/props", headers={"Authorization": f"Bearer {api_key}"})  # noqa: S310
    with urlopen(request, timeout=30) as reply:  # noqa: S310  # nosec B310  # of the server that was just started
        return int(json.load(reply)["default_generation_settings"]["n_ctx"])


def main() -> None:
    """Serve until standard input closes."""
    # Ctrl-C in a terminal reaches the whole process group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(sys.stdin.readline())
    # Standard output is for the one line; whatever the library prints goes where errors go.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = start(config)
    address: str = server.listening_address
    report.write(json.dumps({"address": address, "n_ctx": context_size(address, config["api_key"])}) + "\n")
    report.close()
    sys.stdin.read()
    # The library's own end waits for answers under way, which are not read any more.
    os._exit(0)


if __name__ == "__main__":
    main()
