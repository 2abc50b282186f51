"""The command that has the conformance suite judge this package, without the suite: it comes from npm."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from noetic_mcp import mcp_server

from noetic_py import Harness, InMemoryBackend

HERE = Path(__file__).parent / "conformance"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_judged_server_serves_what_the_suite_asks_for() -> None:
    judged = loaded("judged_server")
    async with Harness(checkpoints=InMemoryBackend()) as harness:
        flows = {each.name: each for each in judged.FLOWS}
        async with Client(mcp_server(harness, flows, resources=judged.RESOURCES), cache=None) as client:
            for name in ("test_image_content", "test_audio_content", "test_embedded_resource"):
                result = await client.call_tool(name, {})
                assert [name.split("_")[1]] == [each.type.replace("resource", "embedded") for each in result.content]


async def test_the_judged_client_logs_in_where_the_scenario_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scenario, wanted in (("tools_call", "NoneType"), ("auth/metadata-default", "OAuth")):
        monkeypatch.setenv("MCP_CONFORMANCE_SCENARIO", scenario)
        auth = await loaded("judged_client").authentication("http://127.0.0.1:9/mcp", tmp_path)
        assert type(auth).__name__ == wanted


def test_the_command_has_two_sides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded("__main__").main(["both"])
    assert "invalid choice: 'both'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "reason", "is_fine"),
    [([], None, True), (["x"], None, False), (["x"], "known", True), ([], "known", False)],
)
def test_a_result_is_compared_with_the_expected_failures(found: list[str], reason: str | None, is_fine: bool) -> None:
    assert loaded("__main__").verdict(found, reason)[0] is is_fine
