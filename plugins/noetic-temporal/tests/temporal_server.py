"""A real Temporal server that the tests start themselves: in a folder of its own, on a free port of the loopback."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from temporal_jobs import connected
from temporalio.client import Client

from tests.programs import need
from tests.servers.ports import free_port

# A history is begun anew after so many events; of Temporal's own it is after 4,096.
_EVENTS = 60


class TemporalServer:
    """One server; `close` stops it and takes everything away."""

    def __init__(self) -> None:
        self._program = need("temporal")
        self.folder = Path(tempfile.mkdtemp(prefix="noetic-temporal-"))
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it has what it had before."""
        command = [str(self._program), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]
        command += ["--port", self.address.partition(":")[2], "--db-filename", str(self.folder / "temporal.db")]
        command += ["--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={_EVENTS}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """Stop it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop it, and start it with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it, and remove its data."""
        self.stop()
        shutil.rmtree(self.folder)

    async def connect(self) -> Client:
        """Connect to it, as soon as it listens."""
        return await connected(self.address)
