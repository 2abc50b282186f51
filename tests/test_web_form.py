"""The web form of the examples: a real server on the loopback, and a real browser that looks at it.

The server runs on asyncio alone, as what carries it does, and in a thread of its own: the browser's driver blocks, so
the tests are plain functions.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from examples import web_form
from noetic_py import FunctionCall, FunctionCallOutput, errors
from noetic_py.models import Model, ModelRequest, ModelStream, RetryModel
from noetic_py.testing import ScriptedModel, Unfinished
from tests.programs import need

T = TypeVar("T")

SECONDS = 20.0
"""How long the page may take to show something."""
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WRONG = "The token is missing or wrong. Open the address that the server has printed."
TIDES, WINDS, FERRIES = (f"{each.capitalize()}: {web_form.ALMANAC[each]}" for each in ("tides", "winds", "ferries"))


# ---------------------------------------------------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Generator[Chrome]:
    """A browser of this module's own."""
    browser, driver = (str(need(program)) for program in ("chromium", "chromedriver"))
    options = ChromeOptions()
    options.binary_location = browser
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        # With both paths given nobody looks for a driver to download; if somebody did it would fail.
        patch.setenv("SE_MANAGER_PATH", "/nowhere")
        chrome = Chrome(options=options, service=ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests leave runs that wait for ever."""
    monkeypatch.setattr(web_form, "GRACE", 0.01)


@pytest.fixture
def browser(chrome: Chrome) -> Generator[Chrome]:
    """The browser, with nothing open but an empty window."""
    [empty] = chrome.window_handles
    console(chrome)
    yield chrome
    for window in chrome.window_handles:
        if window != empty:
            chrome.switch_to.window(window)
            chrome.close()
    chrome.switch_to.window(empty)


def scripted(browser: Chrome, script: str, *arguments: object) -> Any:
    """What a script gives in the page."""
    untyped: Any = browser
    return untyped.execute_script(script, *arguments)


def console(browser: Chrome) -> list[object]:
    """What the browser has complained of since it was asked last."""
    untyped: Any = browser
    return list(untyped.get_log("browser"))


class Page:
    """A window of the browser, and what a person sees and does in it.

    Args:
        browser: The browser; the page's window need not be the one that it looks at.
        address: What is opened in a new window.
    """

    def __init__(self, browser: Chrome, address: str) -> None:
        self._browser = browser
        browser.switch_to.new_window("window")
        self._window = browser.current_window_handle
        browser.get(address)

    @property
    def driver(self) -> Chrome:
        self._browser.switch_to.window(self._window)
        return self._browser

    @property
    def address(self) -> str:
        return str(self.driver.current_url)

    def all(self, css: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> WebElement:
        [found] = self.all(css)
        return found

    def until(self, seen: Callable[[], T]) -> T:
        """Wait until the page, or the server, shows something; what it is."""
        return wait(self.driver, seen)

    def texts(self, css: str) -> list[str]:
        """What a person reads, all at one moment: the page goes on while a test looks."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
        return [str(each) for each in scripted(self.driver, script, css)]

    @property
    def log(self) -> list[tuple[str, str]]:
        """What the run has done: of whom, and what."""
        found = [each.partition("\n") for each in self.texts("#log li")]
        return [(who, what.strip()) for who, _, what in found]

    @property
    def nameless(self) -> list[WebElement]:
        """Fields and buttons that have no name that could be read out."""
        shown = [each for each in self.all("input, textarea, button") if each.is_displayed()]
        assert len(shown) > 1
        return [each for each in shown if not each.accessible_name]

    @property
    def status(self) -> str:
        return self.texts("#status")[0]

    @property
    def proposals(self) -> list[str]:
        return self.texts(".proposal h3")

    def proposed(self, *titles: str) -> None:
        """Wait until these are proposed, and nothing else."""
        self.until(lambda: self.proposals == list(titles))
        assert self.status == "It waits for you"

    def ended(self, status: str = "Done") -> None:
        self.until(lambda: self.status == status)

    def submit(self, form: str, text: str | None = None, button: str = "button") -> None:
        """Write into the field of a form, and send it."""
        if text is not None:
            field = self.one(f"{form} textarea, {form} input[type=text]")
            field.clear()
            # A long text is pasted: the driver takes milliseconds for each key.
            if len(text) > 200:
                scripted(self._browser, "arguments[0].value = arguments[1]", field, text)
            else:
                field.send_keys(text)
        self.one(f"{form} {button}").click()

    def start(self, task: str) -> Page:
        self.submit("#start", task)
        self.until(lambda: self.log)
        return self

    def decide(self, verdict: str, reason: str | None = None) -> None:
        """Of the only proposal."""
        gone = self.one(".proposal [name=proposal]").get_attribute("value")
        self.submit(".proposal", reason, f"button[value={verdict}]")
        self.until(lambda: not self.all(f".proposal [value='{gone}']"))

    def problem(self, form: str) -> str:
        return self.until(lambda: self.one(f"{form} .problem").text)

    def close(self) -> None:
        self.driver.close()
        self._browser.switch_to.window(self._browser.window_handles[0])


def wait(browser: Chrome, seen: Callable[[], T]) -> T:
    waiting: WebDriverWait[Chrome] = WebDriverWait(browser, SECONDS, poll_frequency=0.02)
    return waiting.until(lambda _: seen())


# ----------------------------------------------------------------------------------------------------------- the server


class Served:
    """A server that goes on in another thread.

    Attributes:
        site: What it serves.
        board: Where the agent posts.
        port: Where it listens.
    """

    def __init__(self, portal: BlockingPortal, site: web_form.Site, board: web_form.Board, port: int) -> None:
        self._portal = portal
        self.site = site
        self.board = board
        self.port = port

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.site.address}"

    @property
    def run(self) -> web_form.Watched:
        """The only run."""
        [run] = self.site.runs.values()
        return run

    def call(self, function: Callable[[], T]) -> T:
        return self._portal.call(function)

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
        """An answer as it comes, from something that is no browser."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body or None, {name.replace("_", "-"): to for name, to in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        return self.ask("POST", path, urlencode(fields))[:2]

    def begin(self, task: str) -> tuple[str, str]:
        """Start a run without a browser; its path and its token."""
        _, _, headers = self.ask("POST", "/runs", urlencode({"token": self.site.tokens.of("start"), "task": task}))
        location = urlsplit(headers["location"])
        return location.path, parse_qs(location.query)["token"][0]


@contextmanager
def served(model: Model | None = None) -> Generator[Served]:
    """A server on a free port, for as long as the block lasts; then it has to end in order."""
    board = web_form.Board()
    site = web_form.open_site(model, board)
    carrier = web_form.Carrier(site)
    with start_blocking_portal("asyncio") as portal, socket.create_server(("127.0.0.1", 0)) as listening:
        serving = portal.start_task_soon(partial(carrier.serve, sockets=[listening]))
        try:
            yield Served(portal, site, board, int(listening.getsockname()[1]))
        finally:
            carrier.should_exit = True
            serving.result(SECONDS)


class Gated:
    """A model that waits before it answers.

    Attributes:
        asked: Set when it was asked.
        go: Lets it answer, from then on at once.
    """

    name: str = "test:gated"

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.go = anyio.Event()

    @asynccontextmanager
    async def _respond(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        self.asked.set()
        await self.go.wait()
        async with web_form.Offline().respond(request) as answer:
            yield answer

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return self._respond(request)


# ------------------------------------------------------------------------------------------------ a person and an agent


def test_what_is_approved_is_done_and_shown(browser: Chrome) -> None:
    with served() as server:
        page = Page(browser, server.address).start("Post a notice about tides.")
        page.proposed("Tides")
        assert page.one(".proposal .text").text == web_form.ALMANAC["tides"]
        # What it wants to do it has not done.
        assert server.board.notices == []
        page.decide("approve")
        page.ended()
        assert server.board.notices == [TIDES]
        assert [(who, what) for who, what in page.log if not who.startswith("Calls")] == [
            ("You", "Post a notice about tides."),
            ("Agent", "I look up tides."),
            ("From look_up", web_form.ALMANAC["tides"]),
            ("Agent", "I have read about tides, and would like to post it."),
            ("Approved", "Tides"),
            ("From post_notice", "Posted: Tides."),
            ("Agent", "That is all. Posted: Tides."),
            ("Done", ""),
        ]
        assert page.driver.title == "Done - Post a notice about tides."
        # Nothing was refused by the page's own policy, and no script has failed.
        assert console(browser) == []


def test_of_what_is_declined_the_model_is_told(browser: Chrome) -> None:
    model = ScriptedModel(*[web_form.scout] * 3)
    with served(model) as server:
        page = Page(browser, server.address).start("tides")
        page.proposed("Tides")
        page.decide("decline", "the sea is calm")
        page.ended()
        assert server.board.notices == []
        last = model.requests[-1].items[-1]
        assert isinstance(last, FunctionCallOutput)
        assert last.text == "Not posted: the sea is calm."
        assert page.log[-4:] == [
            ("Declined", "Tides: the sea is calm"),
            ("From post_notice", last.text),
            ("Agent", f"That is all. {last.text}"),
            ("Done", ""),
        ]


def test_a_redirection_withdraws_what_is_proposed_and_leads_elsewhere(browser: Chrome) -> None:
    with served() as server:
        page = Page(browser, server.address).start("Post notices about tides and winds.")
        page.proposed("Tides")
        # What stands in another form stays there.
        page.one(".proposal [name=reason]").send_keys("not yet")
        page.submit("#direct", "Look at ferries instead")
        page.proposed("Ferries")
        assert page.one("#direct [name=direction]").get_attribute("value") == ""
        page.decide("approve")
        page.ended()
        assert server.board.notices == [FERRIES]
        assert [text for who, text in page.log if who in {"You", "Approved", "Declined"}] == [
            "Post notices about tides and winds.",
            "Look at ferries instead",
            "Tides: the person wants something else",
            "Ferries",
        ]
        assert not any("winds" in text for who, text in page.log if who != "You")


def test_a_redirection_comes_while_the_model_thinks(browser: Chrome) -> None:
    model = Gated()
    with served(model) as server:
        page = Page(browser, server.address).start("tides, winds")
        page.until(model.asked.is_set)
        page.until(lambda: page.one("#step").text)
        assert page.status == "It works"
        page.submit("#direct", "no, the ferries")
        # What the model is asked is in the conversation already; what comes now has to wait for the next round.
        page.until(lambda: page.log == [("You", "tides, winds"), ("You (not heard yet)", "no, the ferries")])
        server.call(model.go.set)
        page.proposed("Ferries")
        assert [who for who, _ in page.log[:2]] == ["You", "You"]
        assert ("From look_up", web_form.ALMANAC["tides"]) in page.log
        page.decide("approve")
        page.ended()
        assert server.board.notices == [FERRIES]


def test_a_redirection_that_comes_too_late_for_this_round_starts_another(browser: Chrome) -> None:
    """The loop would end with the model's last answer, and has heard something else meanwhile."""
    model = Gated()
    with served(model) as server:
        page = Page(browser, server.address).start("What do you know?")
        page.until(model.asked.is_set)
        page.submit("#direct", "ferries")
        page.until(lambda: len(page.log) == 2)
        server.call(model.go.set)
        page.proposed("Ferries")
        assert page.log[1] == ("You", "ferries")
        page.decide("decline")
        page.ended()


def test_two_windows_have_two_runs_that_do_not_see_each_other(browser: Chrome) -> None:
    with served() as server:
        first = Page(browser, server.address).start("tides")
        second = Page(browser, server.address).start("winds")
        first.proposed("Tides")
        second.proposed("Winds")
        assert first.address != second.address
        first.decide("approve")
        first.ended()
        assert (second.status, second.proposals) == ("It waits for you", ["Winds"])
        assert server.board.notices == [TIDES]
        second.submit("#direct", "ferries")
        second.proposed("Ferries")
        second.decide("approve")
        second.ended()
        assert server.board.notices == [TIDES, FERRIES]
        shown = [" ".join(f"{who} {what}" for who, what in page.log).lower() for page in (first, second)]
        assert [word in shown[0] for word in ("tides", "winds", "ferries")] == [True, False, False]
        assert [word in shown[1] for word in ("tides", "winds", "ferries")] == [False, True, True]


def test_two_proposals_at_once_are_decided_one_by_one(browser: Chrome) -> None:
    calls = [FunctionCall(name="post_notice", arguments={"title": title, "text": "now"}) for title in ("A", "B")]
    with served(ScriptedModel(calls, "Well.")) as server:
        page = Page(browser, server.address).start("both")
        page.proposed("A", "B")
        page.all("button[value=approve]")[1].click()
        page.proposed("A")
        page.decide("decline")
        page.ended()
        assert server.board.notices == ["B: now"]


def test_nobody_answers(browser: Chrome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_form, "PATIENCE", 0.05)
    with served() as server:
        page = Page(browser, server.address).start("tides")
        page.ended()
        assert ("Declined", "Tides: no answer in time") in page.log
        assert server.board.notices == []


# ----------------------------------------------------------------------------------------------------- what is typed in


def test_bad_input_is_shown_and_nothing_is_lost(browser: Chrome) -> None:
    with served() as server:
        page = Page(browser, server.address)
        page.submit("#start", "   ")
        assert page.problem("#start") == "Say what the agent is to do, in 1 to 500 characters."
        field = page.one("#wanted")
        assert (field.get_attribute("aria-invalid"), page.driver.switch_to.active_element) == ("true", field)
        assert server.site.runs == {}

        page.start("tides")
        page.proposed("Tides")
        # The browser would not let a person write as much.
        scripted(page.driver, "document.querySelectorAll('[maxlength]').forEach(each => each.maxLength = 1000)")
        long = "winds " * 100
        page.submit("#direct", long)
        assert page.problem("#direct") == "Say what to do instead, in 1 to 500 characters."
        assert page.one("#direction").get_attribute("value") == long
        page.submit(".proposal", long, "button[value=decline]")
        assert page.problem(".proposal") == "Give a reason of at most 500 characters."
        assert (page.proposals, page.status) == (["Tides"], "It waits for you")

        page.decide("decline", "no")
        page.ended()
        # What was refused is still there, and the run has never heard of it.
        assert page.one("#direction").get_attribute("value") == long
        assert [text for who, text in page.log if who == "You"] == ["tides"]


def test_everything_is_shown_as_text(browser: Chrome) -> None:
    evil = "<img src=x onerror=document.title='evil'>\"'&<script>document.title='evil'</script>$task"
    calls = [FunctionCall(name="post_notice", arguments={"title": evil, "text": evil})]
    with served(ScriptedModel(calls, evil)) as server:
        page = Page(browser, server.address).start(evil)
        page.proposed(evil)
        assert [page.one(css).text for css in ("h1.of-run", ".proposal h3", ".proposal .text")] == [evil] * 3
        page.decide("decline", evil)
        page.ended()
        assert {("You", evil), ("Declined", f"{evil}: {evil}"), ("Agent", evil)} < set(page.log)
        assert page.all("img, main script") == []
        assert page.driver.title == f"Done - {evil}"


def test_the_page_needs_nothing_from_elsewhere_and_lets_nothing_in(browser: Chrome) -> None:
    with served() as server:
        status, text, headers = server.ask("GET", server.site.address)
        assert status == 200
        assert re.findall(r"https?://|src=|@import|url\(", text) == []
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        [nonce] = re.findall("script-src 'nonce-(.+?)'", policy)
        assert nonce not in server.ask("GET", server.site.address)[1]
        page = Page(browser, server.address)
        assert page.nameless == []
        # A script that was smuggled in does not run.
        scripted(
            page.driver,
            "const made = document.createElement('script'); made.textContent = 'document.title = \"evil\"';"
            "document.body.append(made)",
        )
        assert page.driver.title == "An agent and a person"
        page.start("tides").proposed("Tides")
        assert page.nameless == []


# ------------------------------------------------------------------------------------------------- who may, and who not


def test_another_site_cannot_post(browser: Chrome) -> None:
    with served() as server:
        form = f"<form method=post action=http://127.0.0.1:{server.port}/runs><input name=task value=tides><button>"
        page = Page(browser, f"data:text/html,{quote(form)}")
        page.one("button").click()
        page.until(lambda: page.texts("body") == [WRONG])
        assert server.site.runs == {}


def test_without_its_token_nothing_opens() -> None:
    with served() as server:
        path, token = server.begin("tides")
        other, _ = server.begin("winds")
        start = server.site.tokens.of("start")
        for wrong in ("", "x", "\u00e4", start, token[:-1]):
            fields = {"token": wrong, "direction": "x", "proposal": "x", "verdict": "approve"}
            for post in ("decisions", "directions", "stop"):
                status, text = server.post(f"{path}/{post}", **fields)
                assert (status, text) == (403, WRONG)
            query = urlencode({"token": wrong})
            assert [server.ask("GET", f"{each}?{query}")[0] for each in (path, f"{path}/events")] == [403, 403]
        # A run's token opens this run alone.
        assert server.post(f"{other}/stop", token=token)[0] == 403
        assert server.post("/runs", token=token, task="fog")[0] == 403
        assert server.ask("GET", f"/?token={token}")[0] == 403
        assert server.ask("GET", "/")[0] == 403
        assert [run.over for run in server.site.runs.values()] == [False, False]


@pytest.mark.parametrize(
    ("path", "fields", "status", "said"),
    [
        ("/decisions", {"proposal": "x", "verdict": "perhaps"}, 400, "Either approve or decline."),
        ("/decisions", {"verdict": "approve"}, 400, "Say what is decided on."),
        (
            "/decisions",
            {"proposal": "x", "verdict": "approve"},
            409,
            "This is not proposed any more; nothing was sent.",
        ),
        ("/directions", {}, 400, "Say what to do instead, in 1 to 500 characters."),
        ("/directions", {"direction": "x" * 20_000}, 413, "The form is too long."),
        ("/directions", {f"f{n}": "" for n in range(20)}, 400, "The form cannot be read."),
        ("/elsewhere", {}, 404, "Not Found"),
    ],
)
def test_what_is_refused(path: str, fields: dict[str, str], status: int, said: str) -> None:
    with served() as server:
        run, token = server.begin("tides")
        assert server.post(run + path, token=token, **fields) == (status, said)
        # The server and the run are as they were.
        assert server.ask("GET", f"{run}?token={token}")[0] == 200
        assert server.post(f"{run}/directions", token=token, direction="fog") == (204, "")


def test_what_is_no_form_and_no_browser() -> None:
    with served() as server:
        run, token = server.begin("tides")
        for body in ("token=%ff", "token=\u00e4"):
            assert server.ask("POST", f"{run}/stop", body)[:2] == (400, "The form cannot be read.")
        assert server.ask("GET", f"{run}/stop?token={token}")[0] == 405
        assert server.ask("GET", f"{run}?token={token}", host="evil.example")[0] == 400
        assert server.ask("GET", f"{run}/events?token={token}", last_event_id="-1")[0] == 400


def test_a_decision_is_taken_once(browser: Chrome) -> None:
    with served() as server:
        page = Page(browser, server.address).start("tides, winds")
        page.proposed("Tides")
        address = urlsplit(page.address)
        token = parse_qs(address.query)["token"][0]
        proposal = page.one(".proposal [name=proposal]").get_attribute("value") or ""
        fields = {"token": token, "proposal": proposal, "reason": ""}
        assert server.post(f"{address.path}/decisions", verdict="approve", **fields)[0] == 204
        assert server.post(f"{address.path}/decisions", verdict="decline", **fields)[0] == 409
        page.proposed("Winds")
        assert server.board.notices == [TIDES]


def test_more_is_not_taken_than_the_agent_can_hear(browser: Chrome) -> None:
    model = Gated()
    with served(model) as server:
        page = Page(browser, server.address).start("tides")
        # From here on the task takes no room among what was not heard yet.
        page.until(lambda: page.log == [("You", "tides")])
        address = urlsplit(page.address)
        token = parse_qs(address.query)["token"][0]
        taken = [server.post(f"{address.path}/directions", token=token, direction=f"fog {n}")[0] for n in range(5)]
        assert taken == [204, 204, 204, 204, 429]
        server.call(model.go.set)
        page.proposed("Fog")
        # All that was taken is heard: the channel has dropped none of it.
        assert [text for who, text in page.log if who == "You"] == ["tides", "fog 0", "fog 1", "fog 2", "fog 3"]


def test_runs_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch, browser: Chrome) -> None:
    monkeypatch.setattr(web_form, "MOST_RUNS", 1)
    with served() as server:
        page = Page(browser, server.address).start("tides")
        second = Page(browser, server.address)
        second.submit("#start", "winds")
        assert second.problem("#start") == "Too many runs go on already; nothing was started."
        page.submit("#stop")
        page.ended("Ended: interrupted (stopped on the page)")
        second.start("winds").proposed("Winds")
        page.driver.refresh()
        assert page.texts("body") == ["This run is not kept any more."]


# ------------------------------------------------------------------------------------------------------- whoever leaves


def test_a_closed_tab_loses_nothing(browser: Chrome) -> None:
    with served() as server:
        page = Page(browser, server.address).start("tides")
        page.proposed("Tides")
        assert server.run.watching == 1
        address, seen = page.address, page.log
        page.close()
        wait(browser, lambda: server.run.watching == 0)
        assert not server.run.over

        again = Page(browser, address)
        again.proposed("Tides")
        assert again.log == seen
        again.decide("approve")
        again.ended()
        assert server.board.notices == [TIDES]
        # Also when the run is over; and the page does not ask again and again.
        ended = again.log
        again.driver.refresh()
        again.ended()
        assert again.log == ended
        wait(browser, lambda: server.run.watching == 0)


def test_whoever_was_cut_off_gets_the_rest() -> None:
    with served(ScriptedModel("Well.")) as server:
        run, token = server.begin("Hello")
        everything = server.ask("GET", f"{run}/events?token={token}")[1].split("\n\n")[:-1]
        names = [dict(line.split(": ", 1) for line in piece.split("\n"))["event"] for piece in everything]
        assert (names[0], names[-1]) == ("said", "end")
        rest = server.ask("GET", f"{run}/events?token={token}", last_event_id="2")[1].split("\n\n")[:-1]
        assert rest == everything[2:]
        assert json.loads(everything[-1].partition("data: ")[2])["status"] == "completed"


def test_a_run_that_is_stopped_says_what_it_has_not_heard(browser: Chrome) -> None:
    with served(Gated()) as server:
        page = Page(browser, server.address).start("tides")
        page.submit("#direct", "ferries")
        page.until(lambda: page.log == [("You", "tides"), ("You (not heard yet)", "ferries")])
        page.submit("#stop")
        ended = "Ended: interrupted (stopped on the page)"
        page.ended(ended)
        assert page.log == [
            ("You", "tides"),
            ("You (not heard yet)", "ferries"),
            ("The run ended before it heard", "ferries"),
            (ended, ""),
        ]
        assert not any(button.is_enabled() for button in page.all("#run button"))
        address = urlsplit(page.address)
        token = parse_qs(address.query)["token"][0]
        said = (409, "The run is over; nothing was sent.")
        assert server.post(f"{address.path}/directions", token=token, direction="fog") == said
        assert server.post(f"{address.path}/stop", token=token) == said


def test_what_breaks_is_told_without_what_is_inside(browser: Chrome, caplog: pytest.LogCaptureFixture) -> None:
    with served(ScriptedModel(ValueError("the secret is 1234"))) as server:
        page = Page(browser, server.address).start("tides")
        page.ended("Ended: failed (something broke; the server's log says what)")
        assert "1234" not in page.driver.page_source
        [record] = [record for record in caplog.records if record.name == "web_form"]
        assert record.levelno == logging.ERROR
        assert "1234" in caplog.text


def test_an_answer_that_broke_off_is_struck_out(browser: Chrome) -> None:
    cut = Unfinished("High wa", errors.ModelStreamError("cut", model="test:scripted"))
    with served(RetryModel(ScriptedModel(cut, "High water."), attempts=2, initial=0.0)) as server:
        page = Page(browser, server.address).start("tides")
        page.ended()
        assert [text for who, text in page.log if who == "Agent"] == ["High wa", "High water."]
        assert page.one("#log .discarded").text == "Agent\nHigh wa"


@contextmanager
def started() -> Generator[tuple[subprocess.Popen[str], str]]:
    """The program as a person starts it, and the address that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(web_form.__file__).parent.parent)}
    command = [sys.executable, "-W", "error", web_form.__file__, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().removeprefix("open ").strip()
        finally:
            process.kill()


def test_the_program_ends_in_order_while_pages_are_open(browser: Chrome) -> None:
    with started() as (process, address):
        first, page = Page(browser, address), Page(browser, address).start("tides")
        process.send_signal(signal.SIGTERM)
        page.ended("Ended: interrupted (shutdown)")
        _, said = process.communicate(timeout=SECONDS)
        assert (process.returncode, said) == (-signal.SIGTERM, "")
    first.submit("#start", "winds")
    assert first.problem("#start") == "The server does not answer. What you have written is still here."
    assert first.one("#wanted").get_attribute("value") == "winds"
