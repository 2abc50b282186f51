"""Principals, policies, and where a policy is asked; `tests/security/test_access_matrix.py` tries every method."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import evolve

from noetic_py import (
    Answer,
    Ask,
    Channel,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Principal,
    RunResult,
    SessionKey,
    StateBag,
    acting_as,
    errors,
    step,
)
from noetic_py.access import ACTIONS, AccessPolicy, AccessRequest, RoleAccess, current_principal
from noetic_py.checkpoints import CheckpointBackend, RunEntry, SqliteBackend

pytestmark = pytest.mark.anyio

Ctx = Context[Any, StateBag]
LINE = Channel("line", int, external=True)
ADA, BOB = Principal("ada", {"member"}), Principal("bob", {"member"})
MEMBERS = RoleAccess({"member": ACTIONS})


class Asked:
    """Notes what it is asked, and gives what it was told to give."""

    def __init__(self, *, says: Any = True, waits: bool = False) -> None:
        self.requests: list[AccessRequest] = []
        self.says = says
        self.waits = waits

    async def allows(self, request: AccessRequest) -> bool:
        self.requests.append(request)
        if self.waits:
            await checkpoint()
        if isinstance(self.says, Exception):
            raise self.says
        said: bool = self.says
        return said

    def take(self) -> list[str]:
        asked: list[str] = [request.action for request in self.requests]
        self.requests = []
        return asked


def harness(policy: AccessPolicy | None, backend: CheckpointBackend | None = None, memory: Any = None) -> Harness[Any]:
    return Harness(plugins=(), checkpoints=backend, access=policy, memory=Memory() if memory is None else memory)


@step
async def hello(text: str, ctx: Ctx) -> str:
    return f"{text}, {ctx.user_id}"


@step
async def asks(text: str, ctx: Ctx) -> str:
    return f"{text} {await ctx.ask(Ask('Go on?', bool))}"


@step
async def waits(text: str, ctx: Ctx) -> str:
    return f"{text} {await ctx.recv(LINE, timeout=float('inf'))}"


# -- principals


@pytest.mark.parametrize(("user", "roles"), [("", ()), (5, ()), ("ada", "member"), ("ada", [""]), ("ada", [5])])
async def test_what_is_no_principal(user: Any, roles: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Principal(user, roles)
    assert caught.value.code == "access"


async def test_who_acts_is_known_in_the_block_and_in_tasks_that_are_started_there() -> None:
    seen: list[Principal | None] = []

    async def look() -> None:
        await checkpoint()
        seen.append(current_principal())

    assert current_principal() is None
    async with anyio.create_task_group() as group:
        with acting_as(ADA) as principal:
            assert principal is ADA is current_principal()
            group.start_soon(look)
            with acting_as(BOB):
                group.start_soon(look)
            assert current_principal() is ADA
        group.start_soon(look)
    assert current_principal() is None
    assert {each and each.user_id for each in seen} == {"ada", "bob", None}


async def test_who_is_no_principal_does_not_act() -> None:
    wrong: Any = "ada"
    with pytest.raises(errors.ConfigError), acting_as(wrong):
        pass


@pytest.mark.parametrize("wrong", [object(), "member"])
async def test_what_is_no_policy(wrong: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        harness(wrong)
    assert caught.value.code == "access"


# -- roles


@pytest.mark.parametrize(
    ("roles", "any_owner"),
    [
        ({"member": {"fly"}}, ()),
        ({"member": "run"}, ()),
        ({"member": {"run"}}, {"admin"}),
        ({"member": {"run"}}, "member"),
    ],
)
async def test_unknown_actions_and_roles(roles: Any, any_owner: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        RoleAccess(roles, any_owner=any_owner)
    assert caught.value.code == "access"


def request(action: Any, principal: Principal, owner: str | None, **more: Any) -> AccessRequest:
    return AccessRequest(action, principal, None, owner, None, **more)


async def test_a_role_gives_its_actions_with_one_s_own() -> None:
    policy = RoleAccess({"viewer": {"read"}, "clerk": {"run"}, "boss": {"delete"}}, any_owner={"boss"})
    both = Principal("ada", {"viewer", "clerk", "unheard of"})
    assert await policy.allows(request("read", both, "ada"))
    assert await policy.allows(request("run", both, "ada"))
    assert not await policy.allows(request("delete", both, "ada"))
    assert not await policy.allows(request("read", both, "bob"))
    assert not await policy.allows(request("run", both, "ada", thread_id="bobs"))
    assert await policy.allows(request("delete", Principal("eve", {"boss"}), "bob"))
    # Another role of theirs is not everybody's because of that.
    assert not await policy.allows(request("read", Principal("eve", {"boss", "viewer"}), "bob"))


async def test_what_is_nobody_s_is_not_the_own_of_whoever_is_nobody() -> None:
    assert not await MEMBERS.allows(request("read", Principal(None, {"member"}), None))
    everything = RoleAccess({"member": ACTIONS}, own_runs_only=False)
    assert await everything.allows(request("read", Principal(None, {"member"}), None))
    assert await everything.allows(request("read", ADA, "bob"))


# -- policies that cannot say


@pytest.mark.parametrize("says", [None, 1, "yes", [], False])
async def test_only_true_allows(says: Any) -> None:
    async with harness(Asked(says=says)) as made:
        with acting_as(ADA), pytest.raises(errors.AccessDenied) as caught:
            await made.run(hello, "x")
    assert (caught.value.action, caught.value.__cause__) == ("run", None)


async def test_a_policy_that_is_not_async_denies() -> None:
    class Plain:
        def allows(self, request: AccessRequest) -> bool:
            return True

    wrong: Any = Plain()
    async with harness(wrong) as made:
        with acting_as(ADA):
            with pytest.raises(errors.AccessDenied):
                await made.run(hello, "x")
            with pytest.raises(errors.AccessDenied):
                made.channel_handle(LINE, "r")


async def test_a_policy_that_raises_denies_and_says_what_it_was_whether_a_run_is_there_or_not() -> None:
    backend = InMemoryBackend()
    await harness(None, backend).run(hello, "x", run_id="r", user_id="ada")
    broken = OSError("the directory is down")
    async with harness(Asked(says=broken), backend) as made:
        with acting_as(ADA):
            told = set[str]()
            for run_id in ("r", "other"):
                with pytest.raises(errors.AccessDenied) as caught:
                    await made.runs.get(run_id)
                assert caught.value.__cause__ is broken
                told.add(str(caught.value))
            assert len(told) == 1
            with pytest.raises(errors.AccessDenied):
                await made.runs.list()
            with pytest.raises(errors.AccessDenied):
                made.explain_view("r")


async def test_an_empty_list_is_given_only_to_a_principal() -> None:
    async with harness(MEMBERS, InMemoryBackend()) as made:
        for ask in (made.runs.list, lambda: made.runs.prune(keep=0), lambda: made.sessions.list("ada")):
            with pytest.raises(errors.AccessDenied) as caught:
                await ask()
            assert str(caught.value.hint) == "wrap the call in `acting_as(principal)`"


async def test_a_policy_that_waits_is_waited_for_and_denies_where_nothing_can_wait() -> None:
    policy = Asked(waits=True)
    async with harness(policy) as made:
        with acting_as(ADA):
            assert (await made.run(hello, "x")).value == "x, ada"
            handle = made.start(waits, "x", on_error="result")
            with pytest.raises(errors.AccessDenied) as caught:
                handle.abort("enough")
            assert "waits" in str(caught.value)
            assert not handle.done
            policy.waits = False
            handle.abort("enough")
            assert (await handle.result()).status == "aborted"


async def test_a_cancelled_policy_is_cancelled() -> None:
    class Slow:
        async def allows(self, request: AccessRequest) -> bool:
            await anyio.sleep_forever()
            return True

    async with harness(Slow()) as made:
        with acting_as(ADA), anyio.move_on_after(0.01) as scope:
            await made.run(hello, "x")
    assert scope.cancelled_caught


# -- runs


class Counting(InMemoryBackend):
    """Counts how often a run is looked up."""

    looked_up = 0

    async def entry(self, run_id: str) -> RunEntry | None:
        self.looked_up += 1
        return await super().entry(run_id)


@pytest.mark.parametrize(("policy", "looked_up"), [(None, 0), (MEMBERS, 1)])
async def test_a_run_is_looked_up_for_a_policy_and_only_then(policy: AccessPolicy | None, looked_up: int) -> None:
    backend = Counting()
    async with harness(policy, backend) as made:
        with acting_as(ADA):
            await made.run(hello, "x", run_id="r", user_id="ada")
            backend.looked_up = 0
            assert await made.runs.journal("r")
            assert backend.looked_up == looked_up


async def test_without_a_policy_nobody_is_asked() -> None:
    async with harness(None, InMemoryBackend()) as made:
        assert (await made.run(hello, "x", run_id="r")).value == "x, None"
        assert (await made.runs.get("r")).user_id is None
        with acting_as(ADA):
            assert (await made.run(hello, "x")).value == "x, None"


async def test_a_run_is_its_principal_s_unless_it_says_whose_it_is() -> None:
    policy = Asked()
    async with harness(policy) as made:
        with acting_as(ADA):
            assert (await made.run(hello, "x", run_id="r")).value == "x, ada"
            assert (await made.run(hello, "x", user_id="bob")).value == "x, bob"
            assert (await made.session("eve", "s").run(hello, "x")).value == "x, eve"
    assert [(each.run_id, each.owner, each.session) for each in policy.requests] == [
        ("r", "ada", None),
        (None, "bob", None),
        (None, "eve", SessionKey("eve", "s")),
    ]


async def test_a_started_run_is_begun_by_whoever_started_it() -> None:
    async with harness(MEMBERS) as made:
        with acting_as(ADA):
            handle = made.start(hello, "x")
            refused = made.start(hello, "x", user_id="bob", run_id="r")
        assert (await handle.result()).value == "x, ada"
        with pytest.raises(errors.AccessDenied):
            await refused.result()
        with acting_as(BOB):
            # What was refused is over, and holds nothing.
            assert (await made.run(hello, "x", run_id="r")).value == "x, bob"


async def test_what_a_run_starts_is_its_own() -> None:
    policy = Asked()

    @step
    async def starts(text: str, ctx: Ctx) -> str:
        own = ctx.spawn_detached(hello, "own")
        apart = ctx.spawn_detached(hello, "apart", owner="harness")
        gone = ctx.spawn_detached(waits, "gone", owner="harness")
        gone.abort("enough")
        await gone.wait()
        called = await hello(text, ctx)
        return f"{called}; {(await own.wait()).value}; {(await apart.wait()).value}; {gone.status}"

    async with harness(policy, InMemoryBackend()) as made:
        with acting_as(ADA):
            result: RunResult[str, Any] = await made.run(starts, "x")
            assert policy.take() == ["run"]
            assert result.value == "x, ada; own, ada; apart, ada; aborted"
            assert {run.user_id for run in await made.runs.list()} == {"ada"}


async def test_nothing_is_left_of_a_run_that_was_refused() -> None:
    backend = InMemoryBackend()
    async with harness(RoleAccess({"member": {"read"}}), backend) as made:
        with acting_as(ADA):
            for _ in range(2):
                with pytest.raises(errors.AccessDenied):
                    await made.run(hello, "x", run_id="r")
                with pytest.raises(errors.AccessDenied):
                    await made.start(hello, "x", run_id="r").result()
                with pytest.raises(errors.AccessDenied):
                    async with made.stream(hello, "x", run_id="r"):
                        pass
    assert await backend.list() == []


async def test_a_run_that_fails_while_it_is_waited_for_is_tried_again_only_by_who_may() -> None:
    backend = InMemoryBackend()
    ran: list[str] = []

    @step(id="flow")
    async def flow(text: str, ctx: Ctx) -> str:
        ran.append(text)
        if len(ran) == 1:
            await ctx.recv(LINE, timeout=float("inf"))
        raise ValueError(text)

    policy = RoleAccess({"member": {"run", "read", "resume", "send"}})
    refused: list[Exception] = []
    async with harness(policy, backend) as first, harness(policy, backend) as second:
        with acting_as(ADA):
            handle = first.start(flow, "x", run_id="r", on_error="result")
            while not ran:
                await checkpoint()

            async def go_on() -> None:
                with pytest.raises(errors.AccessDenied) as caught:
                    await second.resume("r", flow, wait=30.0)
                refused.append(caught.value)

            async with anyio.create_task_group() as group:
                group.start_soon(go_on)
                await anyio.wait_all_tasks_blocked()
                first.channel_handle(LINE, "r").send(1)
                assert (await handle.result()).status == "failed"
    assert [getattr(each, "action", None) for each in refused] == ["retry"]
    assert ran == ["x"]


async def test_pruning_keeps_and_forgets_among_one_s_own() -> None:
    backend = InMemoryBackend()
    async with harness(MEMBERS, backend) as made:
        for number in range(6):
            with acting_as(ADA if number % 2 else BOB):
                await made.run(hello, "x", run_id=f"r{number}")
        with acting_as(ADA):
            with pytest.raises(errors.ConfigError):
                await made.runs.prune()
            with pytest.raises(errors.ConfigError):
                await made.runs.prune(keep=1, statuses=["gone"])  # type: ignore[list-item]  # what it has to refuse
            assert await made.runs.prune(keep=1) == 2
    assert sorted(entry.run_id for entry in await backend.list()) == ["r0", "r2", "r4", "r5"]


async def test_a_fork_is_its_owner_s() -> None:
    policy = RoleAccess({"member": {"run", "read"}, "support": ACTIONS}, any_owner={"support"})
    async with harness(policy, InMemoryBackend()) as made:
        with acting_as(ADA):
            await made.run(hello, "x", run_id="r")
        with acting_as(Principal("eve", {"support"})):
            copy = await made.fork("r")
        with acting_as(ADA):
            assert (await made.runs.get(copy)).user_id == "ada"
        with acting_as(BOB), pytest.raises(errors.RunNotFound):
            await made.runs.get(copy)


# -- memory


async def test_no_id_that_is_chosen_leads_to_another_s_thread() -> None:
    policy = Asked()
    async with harness(policy, InMemoryBackend()) as made:
        with acting_as(ADA):
            await made.run(hello, "x", thread_id="t")
            await made.run(hello, "x", ctx=Context(thread_id="t"))
            await made.run(hello, "x", ctx=Context())
            # A run whose id is the name of a thread is not of that thread.
            await made.run(hello, "x", run_id="t")
            assert [each.thread_id for each in policy.requests] == ["t", "t", None, None]
            assert (await made.runs.get("t")).thread_id != "t"
    async with harness(MEMBERS) as made:
        with acting_as(ADA):
            given: list[dict[str, Any]] = [{"thread_id": "t"}, {"ctx": Context(thread_id="t")}]
            for options in given:
                with pytest.raises(errors.AccessDenied):
                    await made.run(hello, "x", **options)
            assert (await made.run(hello, "x", ctx=Context())).value == "x, ada"


# -- answers


@pytest.mark.parametrize("policy", [None, MEMBERS])
async def test_an_answer_is_in_the_name_of_whoever_gives_it(policy: AccessPolicy | None) -> None:
    backend = InMemoryBackend()
    async with harness(policy, backend) as made:
        with acting_as(ADA):
            await made.run(asks, "x", run_id="r", user_id="ada")
            [pending] = (await made.runs.get("r")).pending
            for answer in (pending.answer(True, by="bob"), pending.answer(True, by="")):
                with pytest.raises(errors.AccessDenied) as caught:
                    await made.runs.answer(answer)
                assert caught.value.action == "approve"
                assert "bob" not in str(caught.value)
                with pytest.raises(errors.AccessDenied):
                    await made.resume("r", asks, answers=[answer])
            await made.runs.answer(pending.answer(True))
            assert (await made.resume("r", asks)).value == "x True"
            records = await made.runs.journal("r")
    assert [getattr(record, "by", None) for record in records if type(record).__name__ == "Answered"] == ["ada"]


async def test_without_a_principal_an_answer_says_what_it_says() -> None:
    async with harness(None, InMemoryBackend()) as made:
        await made.run(asks, "x", run_id="r")
        [pending] = (await made.runs.get("r")).pending
        await made.runs.answer(pending.answer(True, by="bob"))
        records = await made.runs.journal("r")
        wrong: Any = "yes"
        with acting_as(ADA), pytest.raises(errors.AnswerInvalid):
            await made.resume("r", asks, answers=[wrong])
    assert [getattr(record, "by", None) for record in records if type(record).__name__ == "Answered"] == ["bob"]


async def test_whoever_has_no_name_takes_none() -> None:
    async with harness(None, InMemoryBackend()) as made:
        await made.run(asks, "x", run_id="r")
        [pending] = (await made.runs.get("r")).pending
        with acting_as(Principal(None)):
            with pytest.raises(errors.AccessDenied):
                await made.runs.answer(pending.answer(True, by="bob"))
            await made.runs.answer(pending.answer(True))


# -- what is looked at


async def test_a_policy_sees_whose_and_which() -> None:
    policy = Asked()
    key = SessionKey("ada", "trip", app="mail")
    async with harness(policy, InMemoryBackend()) as made:
        with acting_as(BOB):
            await made.session("ada", "trip", app="mail").run(hello, "x", run_id="r")
            policy.take()
            await made.runs.journal("r")
            assert [(each.action, each.run_id, each.owner, each.session) for each in policy.requests] == [
                ("read", "r", "ada", key),
                ("export", "r", "ada", key),
            ]
            policy.take()
            await made.runs.progress("r")
            assert [(each.action, each.run_id, each.owner) for each in policy.requests] == [("read", "r", "ada")]
            policy.take()
            await made.session("ada", "trip", app="mail").items()
            assert [(each.action, each.run_id, each.owner, each.session) for each in policy.requests] == [
                ("read", None, "ada", key)
            ]
            assert {each.principal for each in policy.requests} == {BOB}


async def test_what_is_no_session_is_told_so() -> None:
    wrong: Any = "trip"
    async with harness(Asked(), InMemoryBackend()) as made:
        with acting_as(ADA):
            for ask in (made.interrupt, made.sessions.exists, made.sessions.delete):
                with pytest.raises(errors.ConfigError) as caught:
                    await ask(wrong)
                assert caught.value.code == "session-key"


async def test_a_turn_that_is_delivered_again_needs_what_it_needed_first() -> None:
    async with harness(RoleAccess({"member": {"run"}}), InMemoryBackend()) as made:
        with acting_as(ADA):
            session = made.session("ada", "trip")
            first = await session.run(hello, "x", delivery_id="m1")
            again = await session.run(hello, "x", delivery_id="m1")
        with acting_as(BOB), pytest.raises(errors.AccessDenied):
            await session.run(hello, "x", delivery_id="m1")
    assert first.run_id == again.run_id


async def test_answers_are_values_that_were_made_anywhere() -> None:
    made_by_hand = Answer("r", "k", "approved")
    async with harness(MEMBERS, InMemoryBackend()) as made:
        with acting_as(ADA), pytest.raises(errors.RunNotFound) as caught:
            await made.runs.answer(made_by_hand)
    assert "there is no run 'r'" in str(caught.value)


class Unreadable(InMemoryBackend):
    """Says of one run that its entry is damaged, and of another one holds a summary that is none."""

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        found = await super().list(after=after, limit=limit, status=status)
        return [self._shown(each) for each in found]

    async def entry(self, run_id: str) -> RunEntry | None:
        found = await super().entry(run_id)
        return None if found is None else self._shown(found)

    def _shown(self, entry: RunEntry) -> RunEntry:
        if entry.run_id == "damaged":
            return RunEntry.damaged(entry.run_id, entry.cursor, "the row is damaged")
        return evolve(entry, summary=b"[]") if entry.run_id == "odd" else entry


@pytest.mark.parametrize("run_id", ["damaged", "odd"])
async def test_a_damaged_run_is_deleted_by_a_role_of_any_owner(run_id: str) -> None:
    backend = Unreadable()
    policy = RoleAccess({"member": ACTIONS, "operator": ACTIONS, "reader": {"read"}}, any_owner={"operator", "reader"})
    async with harness(policy, backend) as ours:
        with acting_as(ADA):
            await ours.run(hello, "hi", run_id=run_id)
            # Whose it is cannot be read, so it is nothing of hers: as if it were not there.
            await ours.runs.delete(run_id)
        with pytest.raises(errors.AccessDenied):
            await ours.runs.delete(run_id)
        with acting_as(Principal("rob", {"reader"})), pytest.raises(errors.AccessDenied):
            await ours.runs.delete(run_id)
        assert await backend.head(run_id) is not None
        with acting_as(Principal("eve", {"operator"})):
            await ours.runs.delete(run_id)
            assert await ours.runs.list() == []
        assert await backend.head(run_id) is None


async def test_a_damaged_row_is_deleted_by_a_role_of_any_owner(tmp_path: Path) -> None:
    policy = RoleAccess({"member": ACTIONS, "operator": ACTIONS}, any_owner={"operator"})
    async with harness(policy, SqliteBackend(tmp_path / "runs.db")) as ours:
        with acting_as(ADA):
            await ours.run(hello, "hi", run_id="r")
    with sqlite3.connect(tmp_path / "runs.db") as raw:
        raw.execute("UPDATE runs SET card = x'00ff00'")
    raw.close()
    async with harness(policy, SqliteBackend(tmp_path / "runs.db")) as ours:
        with acting_as(Principal("eve", {"operator"})):
            assert [(info.run_id, bool(info.problem)) for info in await ours.runs.list()] == [("r", True)]
            await ours.runs.delete("r")
            assert await ours.runs.list() == []


@pytest.mark.parametrize("older_than", [None, timedelta(seconds=0)])
async def test_nothing_is_pruned_for_a_caller_that_is_not_known(older_than: timedelta | None) -> None:
    backend = InMemoryBackend()
    async with harness(MEMBERS, backend) as made:
        with acting_as(ADA):
            await made.run(hello, "hi", run_id="r")
        with pytest.raises(errors.AccessDenied):
            await made.runs.prune(older_than=older_than, keep=0)
        assert await backend.head("r") is not None
        with acting_as(ADA):
            assert await made.runs.prune(older_than=older_than, keep=0) == 1
            assert await made.runs.list() == []


async def test_a_damaged_run_is_shown_to_whom_every_run_is_there_for() -> None:
    backend = Unreadable()
    policy = RoleAccess({"member": ACTIONS, "operator": ACTIONS}, any_owner={"operator"})
    async with harness(policy, backend) as ours:
        for run_id in ("good", "damaged", "odd"):
            with acting_as(ADA):
                await ours.run(hello, "hi", run_id=run_id)
        with acting_as(ADA):
            assert [info.run_id for info in await ours.runs.list()] == ["good"]
        with acting_as(Principal("eve", {"operator"})):
            found = {info.run_id: info.problem for info in await ours.runs.list()}
            assert found["good"] is None
            assert (found["damaged"], bool(found["odd"])) == ("the row is damaged", True)
            assert await ours.runs.list(session=SessionKey("ada", "s")) == []
            assert await ours.runs.prune(keep=0) == 2
