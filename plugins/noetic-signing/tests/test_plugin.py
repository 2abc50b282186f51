"""The plugin: what the environment asks for, in programs and on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from noetic_signing import Signer, Signing, plugin
from signed_runs import SIGNER, Kept, flow, kept, signed_run

from noetic_py import Harness
from noetic_py.checkpoints import InMemoryBackend, SqliteBackend
from noetic_py.errors import ConfigError, RecordRefused, TransformMissing
from noetic_py.plugins import TransformRegistry, _installed, load_plugins
from tests.cli_shell import Inside

ROOT = Path(__file__).parents[1]


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["signing"]) is plugin


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_py.plugins; import noetic_signing.plugin as p; "
        "r = noetic_py.plugins.TransformRegistry(); p.register_record_transforms(r); assert r.names == []; "
        "assert not {'cryptography', 'rfc8785', 'noetic_signing.signing'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_keys_nothing_is_registered_unless_somebody_asked() -> None:
    registry = TransformRegistry()
    plugin.register_record_transforms(registry)
    assert registry.names == []
    with pytest.raises(ConfigError, match="was asked for, and has no keys") as caught:
        load_plugins([plugin])
    assert caught.value.code == "signing-key"


@pytest.mark.anyio
async def test_the_environment_signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = InMemoryBackend()
    monkeypatch.setenv("NOETIC_SIGNING_KEY", SIGNER.pem().decode())
    writer: Harness[Any] = Harness(checkpoints=backend, plugins=[plugin])
    await writer.run(flow, "go", run_id="r")
    assert (await writer.runs.verify("r")).ok
    monkeypatch.delenv("NOETIC_SIGNING_KEY")
    public = tmp_path / "public.pem"
    public.write_text(SIGNER.public_pem)
    monkeypatch.setenv("NOETIC_SIGNING_TRUSTED", f"runner={public}, gateway={public}")
    reader: Harness[Any] = Harness(checkpoints=backend, plugins=[plugin])
    assert (await reader.runs.verify("r")).ok
    monkeypatch.setenv("NOETIC_SIGNING_KEY_FILE", str(tmp_path / "key.pem"))
    (tmp_path / "key.pem").write_bytes(Signer.generate().pem())
    monkeypatch.setenv("NOETIC_SIGNING_ROLE", "gateway")
    monkeypatch.setenv("NOETIC_SIGNING_POLICY", "annotate")
    made = Signing.from_env()
    assert made is not None
    assert "gateway" in repr(made)
    assert not made.strict
    other: Harness[Any] = Harness(checkpoints=backend, plugins=[plugin])
    assert (await other.resume("r", flow)).value == "go123"


@pytest.mark.anyio
async def test_a_signer_that_a_program_gives_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETIC_SIGNING_KEY", Signer.generate().pem().decode())
    backend = InMemoryBackend()
    harness: Harness[Any] = Harness(checkpoints=backend, plugins=[plugin], record_transforms=[Signing(SIGNER)])
    await harness.run(flow, "go", run_id="r")
    assert {check.by for check in (await harness.runs.verify("r")).checks} == {f"runner (key {SIGNER.key_id.hex()})"}


class Shell:
    """The command line, with the plugin installed as far as it can tell."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.database = inside.folder / "runs.db"
        installed = inside.folder / "installed" / "noetic_signing_here-0.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: noetic-signing-here\nVersion: 0\n")
        (installed / "entry_points.txt").write_text("[noetic_py]\nsigning = noetic_signing.plugin\n")
        inside.patch.setattr(sys, "path", [str(installed.parent), *sys.path])
        # What it has found once it keeps.
        inside.patch.setattr("noetic_py.plugins._installed", _installed.__wrapped__)
        inside.patch.delenv("NOETIC_PLUGINS", raising=False)
        self.public = inside.folder / "public.pem"
        self.public.write_text(SIGNER.public_pem)

    def run(self, *arguments: str, trusted: bool = True) -> subprocess.CompletedProcess[str]:
        trust = f"runner={self.public}" if trusted else ""
        return self.inside.run(*arguments, NOETIC_DB=str(self.database), NOETIC_SIGNING_TRUSTED=trust)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(Inside(tmp_path, monkeypatch, capsys))


async def _store(database: Path, *, forged: bool = False) -> Kept:
    run = await signed_run()
    async with SqliteBackend(database) as backend:
        await run.put(backend, [*run.records[:2], run.records[1], *run.records[3:]] if forged else run.records)
    return run


def test_the_command_line_verifies(shell: Shell) -> None:
    run = anyio.run(_store, shell.database)
    told = shell.run("verify", "r")
    count = len(run.records)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines()[:2] == [
        f"{count} records, all verified",
        f"by      runner (key {SIGNER.key_id.hex()})",
    ]
    anchor = re.fullmatch(r"anchor  (\d+:[0-9a-f]{64})", told.stdout.splitlines()[2])
    assert anchor is not None
    assert shell.run("verify", "r", "--anchor", anchor[1].replace(f"{count}:", "2:")).returncode == 1
    shown = shell.run("show", "r")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "completed" in shown.stdout
    unknown = shell.run("show", "r", trusted=False)
    assert unknown.returncode == 1
    assert "pip install noetic-signing" in unknown.stderr
    none = shell.run("verify", "r", trusted=False)
    assert none.returncode == 2
    assert "noetic-signing" in none.stderr


def test_the_command_line_tells_what_is_forged(shell: Shell) -> None:
    anyio.run(partial(_store, shell.database, forged=True))
    told = shell.run("verify", "r", "--json")
    assert told.returncode == 1
    report = json.loads(told.stdout)
    assert (report["run_id"], report["ok"]) == ("r", False)
    assert {check["verdict"] for check in report["checks"]} == {"verified", "forged"}
    shown = shell.run("show", "r")
    assert shown.returncode == 1
    assert "is forged, says signing" in shown.stderr
    assert "noetic verify" in shown.stderr


@pytest.mark.anyio
async def test_what_is_read_without_the_library_is_still_there() -> None:
    """A harness without the plugin reads nothing, and loses nothing."""
    run = await signed_run()
    backend = InMemoryBackend()
    await run.put(backend)
    plain: Harness[Any] = Harness(checkpoints=backend, plugins=())
    with pytest.raises(TransformMissing):
        await plain.resume("r", flow)
    assert (await kept(backend)).records == run.records
    with pytest.raises(RecordRefused):
        await Harness(checkpoints=backend, plugins=(), record_transforms=[Signing(Signer.generate())]).runs.journal("r")
