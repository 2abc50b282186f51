"""Approvals that change the arguments of a call: what is taken, what is done, and what the model is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from pydantic import BaseModel

from noetic_py import (
    Answer,
    Ask,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    InputText,
    Memory,
    ModelRequest,
    PendingRequest,
    Secret,
    StateBag,
    Step,
    acting_as,
    call_model,
    call_tool,
    errors,
    loop,
    step,
    tool,
    until,
)
from noetic_py.access import Principal
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context.hooks import Block, HookContext, before_tool
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.journal.records import Answered, Pending
from noetic_py.journal.run_summary import PlainCodec
from noetic_py.memory import MemoryLayer, NeedsApproval, Permissions
from noetic_py.testing import FaultyBackend, ScriptedModel
from noetic_py.testing.faults import When
from noetic_py.tools import Tool
from noetic_py.tools.permissions import PermissionAction, PermissionRule

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
NOTE = "The call was approved with other arguments, and was made with these: "


class Account(BaseModel):
    bank: str
    number: int = 1


def calls(name: str, **arguments: Any) -> ScriptedModel:
    """A model that calls one tool and then says what it was told."""

    def answer(request: ModelRequest) -> Any:
        told = [item for item in request.items if isinstance(item, FunctionCallOutput)]
        return told[-1].text if told else FunctionCall(name=name, arguments=arguments, call_id="c1")

    return ScriptedModel(*[answer] * 30)


def harness(backend: CheckpointBackend, model: Any = None, **options: Any) -> Harness[Any]:
    made: Any = Harness
    found: Harness[Any] = made(plugins=(), checkpoints=backend, model=model, **options)
    return found


def agent(*tools: Any) -> Step[Any, Any, Any, Any]:
    return loop(call_model(tools=tools), until=until.no_tool_calls())


def payment(paid: list[Any], **options: Any) -> Tool[..., Any]:
    @tool(name="pay", needs_approval=True, **options)
    async def pay(amount: int, to: str, account: Account | None = None) -> str:
        """Pay somebody."""
        paid.append((amount, to, account))
        return f"paid {amount} to {to}"

    return pay


async def waits(
    backend: CheckpointBackend, flow: Step[Any, Any, Any, Any], model: Any, **options: Any
) -> PendingRequest:
    async with harness(backend, model, **options) as running:
        (request,) = (await running.run(flow, "go", run_id="r")).pending
        return request


async def test_a_call_is_made_with_the_arguments_that_were_approved(backend: CheckpointBackend) -> None:
    paid: list[Any] = []
    flow = agent(payment(paid))
    request = await waits(backend, flow, calls("pay", amount=500, to="Eve"))
    assert request.schema is not None
    assert request.schema["required"] == ["amount", "to"]
    given: dict[str, object] = {"amount": 50, "to": "Eve", "account": Account(bank="north")}
    async with harness(backend) as other:
        with acting_as(Principal("ada")):
            await other.runs.answer(request.approve(arguments=given))
            # The same answer once more is one, another is not.
            await other.runs.answer(request.approve(arguments=given))
            with pytest.raises(errors.AnswerConflict, match="was approved before by ada"):
                await other.runs.answer(request.approve())
    async with harness(backend, calls("pay", amount=500, to="Eve")) as running:
        result = await running.resume("r", flow)
        changed = '{"amount": 50, "to": "Eve", "account": {"bank": "north", "number": 1}}'
        assert result.value == f"{NOTE}{changed}\npaid 50 to Eve"
        assert paid == [(50, "Eve", Account(bank="north"))]
        # The conversation keeps the model's own call, and its one output.
        assert [item.arguments for item in result.items if isinstance(item, FunctionCall)] == [
            '{"amount":500,"to":"Eve"}'
        ]
        assert [item.call_id for item in result.items if isinstance(item, FunctionCallOutput)] == ["c1"]
        journal = await running.runs.journal("r")
    (asked,) = [each for each in journal if isinstance(each, Pending)]
    (answered,) = [each for each in journal if isinstance(each, Answered)]
    assert json.loads(asked.arguments) == {"amount": 500, "to": "Eve", "account": None}
    assert (answered.by, answered.arguments) == ("ada", changed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"amount": "lots", "to": "Eve"}, "amount: 'lots' is not of type 'integer'"),
        ({"amount": 5}, "'to' is a required property"),
        ({"amount": 5, "to": "Eve", "zzz": 1}, "'zzz' was unexpected"),
        ({"amount": 5, "to": "Eve", "account": {"number": 2}}, "account"),
        ({"amount": 5, "to": None}, "to: None is not of type 'string'"),
    ],
)
async def test_what_does_not_fit_is_not_taken(given: dict[str, object], said: str) -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow = agent(payment(paid))
    request = await waits(backend, flow, calls("pay", amount=500, to="Eve"))
    async with harness(backend, calls("pay", amount=500, to="Eve")) as running:
        with pytest.raises(errors.ArgumentsRefused) as refused:
            await running.runs.answer(request.approve(arguments=given))
        assert said in refused.value.message
        with pytest.raises(errors.ArgumentsRefused):
            await running.resume("r", flow, answers=[request.approve(arguments=given)])
        assert len((await running.runs.get("r")).pending) == 1
        result = await running.resume("r", flow, answers=[request.approve(arguments={"amount": 1, "to": "Bob"})])
    assert result.status == "completed"
    assert paid == [(1, "Bob", None)]


class Careful(Memory):
    permissions: Permissions = Permissions(
        rules=[
            PermissionRule("ask", "send"),
            PermissionRule("deny", "send", where={"to": "Mallory"}),
            PermissionRule("deny", "send", where={"via": "fax"}),
        ]
    )


class Stricter(Memory):
    permissions: Permissions = Permissions(
        rules=[PermissionRule("ask", "send"), PermissionRule("deny", "send", where={"to": "Bob"})]
    )


class Closed(Memory):
    permissions: Permissions = Permissions(rules=[PermissionRule("ask", "send", where={"to": "Eve"})], otherwise="deny")


class House(MemoryLayer[None]):
    """Rules of another package: all calls wait, and none goes to Mallory."""

    judges_calls = True

    def call_rules(self) -> tuple[list[PermissionRule], PermissionAction]:
        return [PermissionRule("deny", "send", where={"to": "Mallory"})], "ask"

    async def before_tool_call(self, call: FunctionCall) -> NeedsApproval:
        return NeedsApproval(f"the house asks about {json.loads(call.arguments)['to']}")


class Renames(MemoryLayer[None]):
    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        return evolve(call, arguments=call.arguments.replace("Eve", "Evelyn"))


class Housed(Memory):
    house: House = House()
    renames: Renames = Renames()


def sending(sent: list[str], via: str = "mail") -> Tool[..., Any]:
    @tool(name="send")
    async def send(to: str, via: str = via) -> str:
        """Send a letter."""
        sent.append(f"{to} by {via}")
        return f"sent to {to}"

    return send


async def test_the_permission_rules_judge_the_changed_arguments() -> None:
    backend, sent = InMemoryBackend(), list[str]()
    flow, model = agent(sending(sent)), calls("send", to="Eve")
    request = await waits(backend, flow, model, memory=Careful())
    async with harness(backend) as other:
        for given in ({"to": "Mallory"}, {"to": "Bob", "via": "fax"}):
            with pytest.raises(errors.ArgumentsRefused, match="a permission rule for 'send' denies them"):
                await other.runs.answer(request.approve(arguments=given))
        await other.runs.answer(request.approve(arguments={"to": "Bob"}, by="ada"))
    # The rules of the moment in which it is made hold too.
    async with harness(backend, model, memory=Stricter()) as running:
        fork = await running.fork("r")
        result = await running.resume(fork, flow)
    assert "a rule for 'send' says so" in result.value
    assert sent == []
    async with harness(backend, model, memory=Careful()) as running:
        assert (await running.resume("r", flow)).value == f'{NOTE}{{"to": "Bob"}}\nsent to Bob'
    assert sent == ["Bob by mail"]


async def test_the_rules_of_any_layer_judge_the_changed_arguments() -> None:
    backend, sent = InMemoryBackend(), list[str]()
    flow, model = agent(sending(sent)), calls("send", to="Eve")
    request = await waits(backend, flow, model, memory=Housed())
    # It is asked behind the layer that stands after it, and so judges what that has made of the call.
    assert request.arguments["to"] == "Evelyn"
    assert "the house asks about Evelyn" in request.prompt
    async with harness(backend) as other:
        with pytest.raises(errors.ArgumentsRefused, match="a permission rule for 'send' denies them"):
            await other.runs.answer(request.approve(arguments={"to": "Mallory"}))
        await other.runs.answer(request.approve(arguments={"to": "Bob"}, by="ada"))
    async with harness(backend, model, memory=Housed()) as running:
        await running.resume("r", flow)
    assert sent == ["Bob by mail"]


async def test_hooks_judge_the_changed_arguments() -> None:
    @before_tool
    async def bounded(ctx: HookContext, call: FunctionCall) -> Block | str | None:
        amount = json.loads(call.arguments)["amount"]
        return Block("that is too much") if amount > 1000 else "paid by cheque" if amount == 7 else None

    for given, said in ((5000, "that is too much"), (7, "paid by cheque"), (9, "paid 9 to Eve")):
        backend, paid = InMemoryBackend(), list[Any]()
        flow, model = agent(payment(paid, hooks=[bounded])), calls("pay", amount=500, to="Eve")
        request = await waits(backend, flow, model)
        async with harness(backend, model) as running:
            answer = request.approve(arguments={"amount": given, "to": "Eve"})
            told = (await running.resume("r", flow, answers=[answer])).value
        assert told.endswith(f"\n{said}")
        assert (NOTE in told) is (given == 9)
        assert "was not made with these" in told or given == 9
        assert paid == ([(9, "Eve", None)] if given == 9 else [])


async def test_arguments_that_are_none_are_not_taken() -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow, model = agent(payment(paid)), calls("pay", amount=500, to="Eve")
    request = await waits(backend, flow, model)
    odd: Any
    for odd in (["amount"], "amount", 5, {"amount": 5, "to": "\ud800"}):
        with pytest.raises(errors.AnswerInvalid):
            request.approve(arguments=odd)
    async with harness(backend) as other:
        with pytest.raises(errors.ArgumentsRefused, match="larger than"):
            await other.runs.answer(request.approve(arguments={"amount": 5, "to": "x" * 5_000_000}))


async def test_what_no_rule_allows_is_denied_and_defaults_count() -> None:
    for memory, given, said in (
        (Closed(), {"to": "Bob"}, "no permission rule allows them"),
        (Careful(), {"to": "Bob"}, "denies them"),
    ):
        backend, sent = InMemoryBackend(), list[str]()
        default = "fax" if isinstance(memory, Careful) else "mail"
        flow, model = agent(sending(sent, default)), calls("send", to="Eve", via="mail")
        request = await waits(backend, flow, model, memory=memory)
        async with harness(backend) as other:
            with pytest.raises(errors.ArgumentsRefused, match=said):
                await other.runs.answer(request.approve(arguments=given))


async def test_the_same_arguments_are_no_change_and_other_requests_take_none() -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow, model = agent(payment(paid)), calls("pay", amount=500, to="Eve")
    request = await waits(backend, flow, model)
    with pytest.raises(errors.AnswerInvalid, match="no JSON form"):
        request.approve(arguments={"amount": object()})

    @step
    async def asks(_: str, ctx: Ctx) -> int:
        return await ctx.ask(Ask("How many?", int))

    async with harness(backend, model) as running:
        result = await running.resume("r", flow, answers=[request.approve(arguments={"to": "Eve", "amount": 500})])
        assert result.value == "paid 500 to Eve"
        (question,) = (await running.run(asks, "x", run_id="q")).pending
        with pytest.raises(errors.AnswerInvalid):
            question.approve(arguments={"n": 1})
        odd = evolve(question.answer(1), arguments={"n": 1})
        with pytest.raises(errors.ArgumentsRefused, match="does not say what the tool takes"):
            await running.runs.answer(odd)


async def test_a_request_of_an_older_version_takes_no_changes() -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow, model = agent(payment(paid)), calls("pay", amount=500, to="Eve")
    request = await waits(backend, flow, model)
    from noetic_py.tools.calls import check_changed

    answer = request.approve(arguments={"amount": 1, "to": "Bob"})
    old = Pending(request.path, "approval", request.key, "", tool="pay", arguments='{"amount":500,"to":"Eve"}')
    with pytest.raises(errors.ArgumentsRefused, match="does not say what the tool takes"):
        check_changed(answer, old)


async def test_rules_of_a_later_version_let_no_change_pass() -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow, model = agent(payment(paid)), calls("pay", amount=500, to="Eve")
    request = await waits(backend, flow, model, memory=Careful())
    from noetic_py.tools.calls import check_changed

    (record,) = [each for each in await read_journal(backend, "r", PlainCodec()) if isinstance(each, Pending)]
    assert record.rules
    rules = [{**each, "rules": [{**rule, "until": "noon"} for rule in each["rules"]]} for each in record.rules]
    answer = request.approve(arguments={"amount": 1, "to": "Bob"})
    with pytest.raises(errors.ArgumentsRefused, match="of a later version"):
        check_changed(answer, evolve(record, rules=rules))


class Even(BaseModel):
    n: int

    def model_post_init(self, _: object) -> None:
        if self.n % 2:
            raise ValueError("odd")


async def test_what_the_tool_itself_does_not_take_is_asked_for_anew() -> None:
    backend, seen = InMemoryBackend(), list[int]()

    @tool(needs_approval=True)
    async def use(even: Even) -> str:
        """Use an even number."""
        seen.append(even.n)
        return "used"

    flow, model = agent(use), calls("use", even={"n": 2})
    request = await waits(backend, flow, model)
    async with harness(backend, model) as running:
        # The schema does not say that it has to be even.
        result = await running.resume("r", flow, answers=[request.approve(arguments={"even": {"n": 3}})])
        assert result.status == "suspended"
        (again,) = result.pending
        assert again.problem is not None
        assert "odd" in again.problem
        assert again.key != request.key
        result = await running.resume("r", flow, answers=[again.approve(arguments={"even": {"n": 4}})])
    assert (result.status, seen) == ("completed", [4])


async def test_a_step_that_calls_a_tool_gets_them_too() -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow = call_tool(payment(paid), args={"amount": 500, "to": "Eve"})
    request = await waits(backend, flow, None)
    async with harness(backend) as running:
        result = await running.resume("r", flow, answers=[request.approve(arguments={"amount": 5, "to": "Bob"})])
    assert result.value == "paid 5 to Bob"
    assert paid == [(5, "Bob", None)]


@pytest.mark.parametrize("options", [{"long_running": True}, {"replay": "once"}])
async def test_every_kind_of_tool_gets_them(options: dict[str, Any]) -> None:
    backend, paid = InMemoryBackend(), list[Any]()
    flow, model = agent(payment(paid, **options)), calls("pay", amount=500, to="Eve")
    request = await waits(backend, flow, model)
    async with harness(backend, model) as running:
        result = await running.resume("r", flow, answers=[request.approve(arguments={"amount": 5, "to": "Bob"})])
        if result.pending:
            (later,) = result.pending
            assert (later.kind, later.arguments) == ("result", {"amount": 5, "to": "Bob", "account": None})
            result = await running.resume("r", flow, answers=[later.answer("arrived")])
    assert result.value.startswith(f'{NOTE}{{"amount": 5, "to": "Bob"}}\n')
    assert paid == [(5, "Bob", None)]


async def test_the_model_is_told_beside_parts_and_failures() -> None:
    @tool(needs_approval=True)
    async def look(at: str) -> list[InputText]:
        """Look."""
        if at == "nothing":
            raise ValueError("there is nothing")
        return [InputText(text=f"seen {at}")]

    for at, said in (("sea", "seen sea"), ("nothing", "tool 'look' failed: ValueError: there is nothing")):
        backend = InMemoryBackend()
        flow, model = agent(look), calls("look", at="sky")
        request = await waits(backend, flow, model)
        async with harness(backend, model) as running:
            result = await running.resume("r", flow, answers=[request.approve(arguments={"at": at})])
        (output,) = [item for item in result.items if isinstance(item, FunctionCallOutput)]
        assert output.text.startswith(NOTE)
        assert said in output.text


async def test_a_secret_is_not_put_into_an_answer() -> None:
    backend, used = InMemoryBackend(), list[str]()

    @tool(needs_approval=True)
    async def login(user: str, password: Secret[str]) -> str:
        """Log in."""
        used.append(f"{user} {password.reveal()}")
        return "in"

    flow, model = agent(login), calls("login", user="eve", password="hunter22")  # pragma: allowlist secret
    request = await waits(backend, flow, model)
    async with harness(backend, model) as running:
        with pytest.raises(errors.ArgumentsRefused, match="a secret cannot be changed"):
            await running.runs.answer(request.approve(arguments={"user": "ada", "password": "other"}))
        kept = {**request.arguments, "user": "ada"}
        result = await running.resume("r", flow, answers=[request.approve(arguments=kept)])
    # What the model sent is not there any more in the process that goes on, which the model is told.
    assert result.status == "completed"
    assert used == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_anywhere_the_change_holds(when: When) -> None:
    at = 0
    while True:
        at += 1
        paid: list[Any] = []
        flow, model = agent(payment(paid)), calls("pay", amount=500, to="Eve")
        store = FaultyBackend(InMemoryBackend(), dies_at=at, when=when)
        result: Any = None
        died = False
        for _ in range(6):
            with store.outlived():
                async with harness(store, model) as running:
                    there = [each for each in await running.runs.list() if each.position]
                    pending = there[0].pending if there else ()
                    if not there:
                        await running.runs.delete("r")
                        await running.run(flow, "go", run_id="r")
                    elif pending:
                        await running.runs.answer(pending[0].approve(arguments={"amount": 5, "to": "Bob"}))
                    else:
                        result = await running.resume("r", flow)
                        if result.status == "completed":
                            break
            if store.dead:
                died = True
                store.revive()
        assert result.value == f'{NOTE}{{"amount": 5, "to": "Bob"}}\npaid 5 to Bob'
        assert set(paid) == {(5, "Bob", None)}
        if not died:
            break
    assert at > 4


def test_an_answer_says_what_is_changed() -> None:
    answer = Answer("r", "k", "approved", arguments={"amount": 1})
    assert answer.arguments == {"amount": 1}
