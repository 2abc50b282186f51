"""Logins at a real authorization server on the loopback; the test is the browser."""

from __future__ import annotations

import io
import json
import logging
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from authority import Authority, Machines, for_all, for_machines, guarded
from mcp.server.auth.provider import AccessToken, RefreshToken
from mcp.shared.auth import OAuthClientInformationFull
from noetic_mcp import (
    McpLoginFailed,
    McpLoginRequired,
    McpServer,
    McpTools,
    McpUnavailable,
    OAuth,
    OAuthClientCredentials,
)
from pydantic import AnyUrl

from noetic_py import FunctionCall, Harness, InMemoryBackend, Memory, Secret, call_model, loop, until
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.testing import ScriptedModel


@pytest.fixture(scope="module", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients load no certificates: that takes a tenth of a second each time, and none is needed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, Authority]]:
    with guarded() as found:
        yield found


@pytest.fixture
def at(running: tuple[str, Authority]) -> tuple[str, Authority]:
    """The server's address, and its authorization server as new."""
    vars(running[1]).update(vars(Authority()))
    return running


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, Machines]]:
    with for_machines() as found:
        yield found


async def browse(address: str) -> None:
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        answer = await browser.get(address)
    assert answer.status_code == 200, answer.text


async def logged_in(url: str, login: OAuth, visit: Callable[[str], Any] = browse) -> McpServer:
    """The server after a login, with `visit` as the browser."""
    server = McpServer.streamable_http("web", url, auth=login)
    async with anyio.create_task_group() as group:
        await server.login(show=lambda address: group.start_soon(visit, address))
    return server


async def sum_at(server: McpServer) -> object:
    async with server:
        return await server.call("add", {"a": 1, "b": 2})


async def test_the_first_login_and_later_processes(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "logins" / "web.json"
    assert await sum_at(await logged_in(url, OAuth(file))) == "3"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["web.json"]
    # Another process has nothing but the file.
    later = McpServer.streamable_http("web", url, auth=OAuth(str(file)))
    assert await sum_at(later) == "3"
    await later.login(show=lambda address: pytest.fail("the login is valid"))
    assert (authority.logins, authority.renewals, len(authority.clients)) == (1, 0, 1)


async def test_calls_do_not_wait_for_each_other(at: tuple[str, Authority], tmp_path: Path) -> None:
    async with await logged_in(at[0], OAuth(tmp_path / "web.json")) as server:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for name in ("a", "b"):
                    group.start_soon(server.call, "meet", {"name": name})


async def test_an_expired_token_is_renewed_by_a_later_process(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    await logged_in(url, OAuth(file))
    # The server would still take it, so that only the stored time says so.
    stored = json.loads(file.read_text())
    assert stored["expires_at"] > time.time() + 3000
    file.write_text(json.dumps(stored | {"expires_at": time.time() - 10}))
    assert await sum_at(McpServer.streamable_http("web", url, auth=OAuth(file))) == "3"
    assert (authority.logins, authority.renewals) == (1, 1)
    assert json.loads(file.read_text())["tokens"]["refresh_token"] != stored["tokens"]["refresh_token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_token_that_is_refused_before_its_time_is_renewed(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    async with await logged_in(url, OAuth(file)) as one, McpServer.streamable_http("b", url, auth=OAuth(file)) as other:
        assert await one.call("add", {"a": 1, "b": 2}) == "3"
        assert await other.call("add", {"a": 1, "b": 2}) == "3"
        authority.expire()
        assert await one.call("add", {"a": 2, "b": 2}) == "4"
        # The refresh token of the other one is used up: it takes the login that is stored now.
        assert await other.call("add", {"a": 2, "b": 2}) == "4"
    assert (authority.logins, authority.renewals) == (1, 1)


async def test_a_process_that_renews_too_late_takes_the_login_of_the_other(
    at: tuple[str, Authority], tmp_path: Path
) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    server = await logged_in(url, OAuth(file))
    authority.expire()

    def other_process(token: RefreshToken) -> None:
        del authority.refresh[token.token]
        tokens = authority.issue(token.client_id, token.scopes, token.resource)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tokens": tokens.model_dump(mode="json")}))

    authority.before_renewal = other_process
    assert await sum_at(server) == "3"
    assert (authority.logins, authority.renewals) == (1, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
async def test_two_processes_that_renew_at_once_keep_the_login(at: tuple[str, Authority], tmp_path: Path) -> None:
    """The authorization server ends a login whose refresh token is used twice."""
    url, authority = at
    file = tmp_path / "web.json"
    await logged_in(url, OAuth(file))
    command = [sys.executable, str(Path(__file__).with_name("renewing.py")), url, str(file)]
    with anyio.fail_after(180):
        async with await anyio.open_process(command, stderr=sys.stderr) as both:
            assert both.stdin is not None
            assert both.stdout is not None
            said = b""
            while len(said) < 4:
                said += await both.stdout.receive()
            authority.expire()
            authority.meets = True
            await both.stdin.aclose()
            said += b"".join([piece async for piece in both.stdout])
            assert (await both.wait(), said) == (0, b"3\n" * 4)
    assert (authority.logins, authority.renewals) == (1, 1)


async def test_a_login_that_has_ended_is_required_again(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    async with await logged_in(url, OAuth(file)) as server:
        assert await server.call("add", {"a": 1, "b": 2}) == "3"
        authority.expire()
        authority.refresh.clear()
        with pytest.raises(McpLoginRequired):
            await server.call("add", {"a": 1, "b": 2})
    assert await sum_at(await logged_in(url, OAuth(file))) == "3"
    assert authority.logins == 2


async def test_a_broken_authorization_server_ends_no_login(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    await logged_in(url, OAuth(file))
    authority.expire()
    authority.is_broken = True
    server = McpServer.streamable_http("web", url, auth=OAuth(file))
    async with server:
        with pytest.raises(McpUnavailable, match="its authorization server answered with status 500"):
            await server.tools()
    authority.is_broken = False
    assert await sum_at(server) == "3"
    assert authority.logins == 1


async def test_without_a_login_requests_fail_at_once(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    file = tmp_path / "web.json"
    server = McpServer.streamable_http("web-1", url, auth=OAuth(file))
    for content in (
        None,
        "{}",
        "no JSON",
        json.dumps({"server": "https://example.com", "tokens": {"access_token": "x"}}),
    ):
        if content is not None:
            file.write_text(content)
        async with server:
            with pytest.raises(McpLoginRequired) as caught:
                await server.tools()
        assert str(file) in str(caught.value)
        assert "anyio.run(web_1.login)" in str(caught.value)
    assert not authority.clients


async def test_a_run_without_a_login_says_what_to_do(at: tuple[str, Authority], tmp_path: Path) -> None:
    server = McpServer.streamable_http("web", at[0], auth=OAuth(tmp_path / "web.json"))

    class Mem(Memory):
        mcp: McpTools = McpTools(servers=[server])

    agent = loop(call_model(), until=until.no_tool_calls())
    async with server, Harness(model=ScriptedModel("unused"), memory=Mem()) as harness:
        with pytest.raises(NoeticError, match=r"anyio\.run\(web\.login\)"):
            await harness.run(agent, "go")


async def test_the_login_of_another_server_is_not_sent(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, _ = at
    file = tmp_path / "web.json"
    await logged_in(url, OAuth(file))
    # Nothing listens there: a request would fail.
    async with McpServer.streamable_http("other", "http://127.0.0.1:9/mcp", auth=OAuth(file)) as server:
        with pytest.raises(McpLoginRequired):
            await server.tools()


async def test_a_call_that_needs_more_rights_than_the_login_has(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    login = OAuth(tmp_path / "web.json")
    server = await logged_in(url, login)
    for logins, needed in enumerate(("tides:write", "tides:plan"), 1):
        authority.needed = needed
        async with server:
            with pytest.raises(McpLoginRequired, match=f"does not have the rights '{needed}'") as caught:
                await server.call("add", {"a": 1, "b": 2})
            assert "anyio.run(web.login)" in str(caught.value)
            # The login holds for what needs no more, and a renewal does not forget what is lacking.
            authority.expire()
            assert await server.tools()
        assert (authority.logins, authority.renewals) == (logins, logins)
        # Another process logs in.
        server = await logged_in(url, login)
        assert await sum_at(server) == "3"
    assert [each.scopes for each in authority.access.values()][-1] == ["tides:write", "tides:plan"]
    await server.login(show=lambda address: pytest.fail("nothing is lacking"))


async def test_a_login_whose_rights_are_not_enough_is_asked_for_once_more(
    at: tuple[str, Authority], tmp_path: Path
) -> None:
    url, authority = at
    login = OAuth(tmp_path / "web.json")
    authority.needed, authority.needed_for = "tides:read", "tools/list"
    assert await sum_at(await logged_in(url, login)) == "3"
    assert authority.logins == 2
    # A server that is content with nothing does not ask for ever.
    authority.needed = "tides write"
    with pytest.RaisesGroup(pytest.RaisesExc(McpLoginFailed, match="does not have the rights")):
        await logged_in(url, login)
    assert authority.logins == 4


async def test_a_login_that_ends_at_once_is_asked_for_again(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    methods: list[str] = []

    def end_once(method: str) -> None:
        if method == "tools/list" and method not in methods:
            authority.end()
        methods.append(method)

    authority.before_request = end_once
    assert await sum_at(await logged_in(url, OAuth(tmp_path / "web.json"))) == "3"
    assert authority.logins == 2


async def test_a_refused_login(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    authority.refuses = True
    with pytest.RaisesGroup(pytest.RaisesExc(McpLoginFailed, match=r"refused \(access_denied\)")):
        await logged_in(url, OAuth(tmp_path / "web.json"))
    assert not (tmp_path / "web.json").exists()


async def test_an_answer_with_another_state_is_refused(at: tuple[str, Authority], tmp_path: Path) -> None:
    url, authority = at
    statuses: list[int] = []

    async def visit(address: str) -> None:
        sent = parse_qs(urlsplit(address).query)
        back = sent["redirect_uri"][0]
        async with httpx2.AsyncClient() as browser:
            tries = ("?code=stolen&state=wrong", "?code=stolen", f"?state={sent['state'][0]}", "/favicon.ico")
            statuses.extend([(await browser.get(back + each)).status_code for each in tries])
            statuses.append((await browser.post(f"{back}?code=x&state={sent['state'][0]}")).status_code)
        await browse(address)

    assert await sum_at(await logged_in(url, OAuth(tmp_path / "web.json"), visit)) == "3"
    assert statuses == [400] * 5
    assert authority.logins == 1


async def test_what_is_not_http_does_not_end_the_login(at: tuple[str, Authority], tmp_path: Path) -> None:
    async def visit(address: str) -> None:
        port = urlsplit(parse_qs(urlsplit(address).query)["redirect_uri"][0]).port
        assert port is not None
        for sent in (b"", b"\x00\xff", b"x" * 20_000, b"\xff\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n"):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(sent or b"G")
        await browse(address)

    await logged_in(at[0], OAuth(tmp_path / "web.json"), visit)


async def test_a_login_that_is_not_completed(at: tuple[str, Authority], tmp_path: Path) -> None:
    server = McpServer.streamable_http("web", at[0], auth=OAuth(tmp_path / "web.json"))
    with pytest.raises(McpLoginFailed, match=r"not completed within 0\.2 s") as caught:
        await server.login(show=lambda address: None, timeout=0.2)
    assert "open the address" in str(caught.value)


async def test_by_default_the_address_is_written(
    at: tuple[str, Authority], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = McpServer.streamable_http("web", at[0], auth=OAuth(tmp_path / "web.json"))
    async with anyio.create_task_group() as group:

        class Screen(io.StringIO):
            def flush(self) -> None:
                group.start_soon(browse, self.getvalue().split()[-1])

        monkeypatch.setattr(sys, "stderr", Screen())
        await server.login()
    assert await sum_at(server) == "3"


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_that_is_registered_by_hand(at: tuple[str, Authority], tmp_path: Path, method: str) -> None:
    url, authority = at
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    authority.clients["mine"] = OAuthClientInformationFull(
        client_id="mine",
        client_secret="kept-from-texts-1",
        redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")],
        token_endpoint_auth_method=method,
    )
    file = tmp_path / "web.json"
    login = OAuth(file, redirect_port=port, client_id="mine", client_secret="kept-from-texts-1")
    if method == "client_secret_post":
        with pytest.RaisesGroup(pytest.RaisesExc(McpLoginFailed, match="login failed")):
            await logged_in(url, login)
        return
    assert await sum_at(await logged_in(url, login)) == "3"
    authority.expire()
    assert await sum_at(McpServer.streamable_http("web", url, auth=login)) == "3"
    assert (authority.logins, authority.renewals, list(authority.clients)) == (1, 1, ["mine"])
    assert "kept-from-texts" not in file.read_text() + repr(login)


async def test_a_port_that_is_taken(at: tuple[str, Authority], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        login = OAuth(tmp_path / "web.json", redirect_port=taken.getsockname()[1])
        with pytest.raises(McpLoginFailed, match="is in use"):
            await McpServer.streamable_http("web", at[0], auth=login).login()


async def test_no_text_shows_a_token(
    at: tuple[str, Authority], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, authority = at
    file, backend = tmp_path / "web.json", InMemoryBackend()
    server = await logged_in(url, OAuth(file))

    class Mem(Memory):
        mcp: McpTools = McpTools(servers=[server])

    agent = loop(call_model(), until=until.no_tool_calls())
    model = ScriptedModel(FunctionCall(name="web__add", arguments={"a": 1, "b": 2}), "3")
    async with server, Harness(model=model, memory=Mem(), checkpoints=backend) as harness:
        await harness.run(agent, "go", run_id="r")
        stored = str([each async for each in harness.runs.events("r")]) + str(await harness.runs.history("r"))
        authority.expire()
        authority.refresh.clear()
        with pytest.raises(McpLoginRequired) as caught:
            await server.call("add", {"a": 1, "b": 2})
    # The test's own server logs too; a browser's address holds the code, which is used up.
    logs = [
        f"{each.getMessage()} {each.exc_text}"
        for each in caplog.records
        if each.name.startswith(("mcp.client", "noetic", "httpx"))
    ]
    assert logs
    shown = f"{logs} {stored} {caught.value!r} {caught.value} {server!r} {OAuth(file)!r}"
    assert authority.issued
    assert not [each for each in authority.issued if each in shown]


async def test_a_program_logs_in_by_itself(machines: tuple[str, Machines]) -> None:
    url, authority = machines
    login = OAuthClientCredentials(authority.client, authority.secret, issuer=authority.address)
    async with McpServer.streamable_http("web", url, auth=login) as server:
        assert await server.call("add", {"a": 1, "b": 2}) == "3"
        authority.access.clear()
        assert await server.call("add", {"a": 2, "b": 2}) == "4"
    assert "kept-from-texts" not in repr(login)


async def test_a_program_gets_the_rights_that_a_call_needs(machines: tuple[str, Machines]) -> None:
    url, authority = machines
    authority.needed = "tides:write"
    login = OAuthClientCredentials(authority.client, authority.secret, issuer=authority.address)
    try:
        assert await sum_at(McpServer.streamable_http("web", url, auth=login)) == "3"
    finally:
        authority.needed = ""
    assert [each.scopes for each in authority.access.values()][-1] == ["tides:write"]


async def test_a_program_that_is_refused(machines: tuple[str, Machines], caplog: pytest.LogCaptureFixture) -> None:
    url, authority = machines
    login = OAuthClientCredentials("robot", Secret("kept-from-texts-wrong"), issuer=authority.address)
    async with McpServer.streamable_http("web", url, auth=login) as server:
        with pytest.raises(McpLoginFailed, match=r"Token exchange failed \(401\)") as caught:
            await server.tools()
    # The server sends what it was sent.
    assert "Basic" not in f"{caught.value} {caplog.text}"
    elsewhere = OAuthClientCredentials("robot", authority.secret, issuer="https://example.com")
    async with McpServer.streamable_http("web", url, auth=elsewhere) as server:
        with pytest.raises(McpLoginFailed):
            await server.tools()


async def test_a_request_that_needs_no_token_is_sent_once() -> None:
    login = OAuthClientCredentials("robot", "kept-from-texts", issuer="https://example.com")
    with for_all() as url, anyio.fail_after(20):
        async with McpServer.streamable_http("web", url, auth=login) as server:
            assert [await server.call("count", {}) for _ in range(2)] == ["1", "2"]


async def test_any_authentication_of_httpx(machines: tuple[str, Machines]) -> None:
    url, authority = machines

    class Token(httpx2.Auth):
        def auth_flow(self, request: httpx2.Request) -> Any:
            request.headers["Authorization"] = "Bearer by-hand"
            yield request

    authority.access["by-hand"] = AccessToken(token="by-hand", client_id="x", scopes=[])
    assert await sum_at(McpServer.streamable_http("web", url, auth=Token())) == "3"


async def test_definitions_that_are_refused(tmp_path: Path) -> None:
    wrong: Any = "token"
    with pytest.raises(ConfigError, match="auth= of type str is not a valid authentication"):
        McpServer.streamable_http("web", "https://example.com/mcp", auth=wrong)
    with pytest.raises(ConfigError, match="client_secret= without client_id="):
        OAuth(tmp_path / "x", client_secret="kept-from-texts")
    with pytest.raises(ConfigError) as caught:
        await McpServer.streamable_http("web", "https://example.com/mcp").login()
    assert caught.value.code == "mcp-login"
