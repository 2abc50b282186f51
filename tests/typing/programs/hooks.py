# Hooks: what each is given and may give, and that what it needs of memory and state is needed by what it is put on.
from attrs import define
from typing_extensions import assert_type

from noetic_py.context import hooks
from noetic_py import Context, FunctionCall, FunctionCallOutput, Harness, HookContext, Memory, ModelRequest, ModelResponse, Step, call_model, step, tool
from noetic_py.context.artifacts import Artifact, ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.context.hooks import Hook
from noetic_py.core.items import ModelInput
from noetic_py.errors import ModelError, NoeticError


class Mem(Memory): ...


@define
class State:
    n: int = 0


@hooks.before_model
async def ask(ctx: HookContext, request: ModelRequest) -> ModelRequest | ModelResponse | None:
    return None


@hooks.after_model
async def count(ctx: HookContext[Mem, State], response: ModelResponse) -> None:
    assert_type(ctx.state, State)
    assert_type(ctx.memory, Mem)
    ctx.state.n += 1
    ctx.state = {"n": 2}
    ctx.effects.state["n"] = 3
    ctx.effects.state = {"n": 4}
    ctx.effects.save("a", b"x", scope="user")
    ctx.effects.save("a", "x")  # E
    ctx.effects.save("a", b"x", scope="team")  # E
    ctx.effects.hand_off(double, 1)
    ctx.effects.hand_off(double, "1")  # E
    ctx.abort("no")  # E


@hooks.on_model_error(name="recover", tags=["small"])
async def recover(ctx: HookContext[Mem, State], error: ModelError) -> ModelResponse | None:
    return None


@hooks.before_tool
async def check(ctx: HookContext, call: FunctionCall) -> hooks.Block | str:
    return "x"


@hooks.after_tool
async def after(ctx: HookContext, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
    return output


@hooks.before_step
async def begins(ctx: HookContext, call: hooks.StepCall) -> None: ...


@hooks.on_step_error(tags=["small"])
async def failed(ctx: HookContext[Mem, State], call: hooks.StepCall, error: NoeticError) -> None: ...


@hooks.after_round
async def went_round(ctx: HookContext, done: hooks.Round) -> None: ...


assert_type(ask, Hook[Memory, object])
assert_type(count, Hook[Mem, State])
assert_type(recover, Hook[Mem, State])
assert_type(failed, Hook[Mem, State])


@hooks.after_model  # E
async def another_subject(ctx: HookContext, request: ModelRequest) -> None: ...


@hooks.after_model  # E
async def gives_a_text(ctx: HookContext, response: ModelResponse) -> str:
    return ""


@hooks.on_step_error  # E
async def recovers(ctx: HookContext, call: hooks.StepCall, error: NoeticError) -> str:
    return ""


@hooks.after_tool  # E
async def too_few(ctx: HookContext, call: FunctionCall) -> None: ...


@step
async def double(x: int) -> int:
    return x * 2


@tool(hooks=[check, after], tags=["small"])
async def look(x: int) -> int:
    return x


assert_type(call_model(hooks=[ask]), Step[ModelInput, str, Memory, object])
assert_type(call_model(hooks=[count]), Step[ModelInput, str, Mem, State])
call_model(hooks=[double])  # E
double.with_options(hooks=[look])  # E

Harness(hooks=[ask, check, after])
Harness(memory=Mem(), hooks=[ask])
Harness(hooks=[count])  # E
Harness(services={ArtifactStore: StoredArtifacts()})


async def main(harness: Harness[Mem], ctx: Context) -> None:
    await harness.run(call_model(hooks=[count]), "hi", state=State())
    await harness.run(call_model(hooks=[count]), "hi")  # E
    store = ctx.services[ArtifactStore]
    assert_type(store, ArtifactStore)
    assert_type(ctx.services.get(ArtifactStore), ArtifactStore | None)
    owner = ArtifactOwner.of(ctx, "user")
    assert_type(await store.save(owner, "a", b"x"), int)
    assert_type(await store.load(owner, "a"), Artifact | None)
    kept: ArtifactStore = StoredArtifacts()
    print(kept)
