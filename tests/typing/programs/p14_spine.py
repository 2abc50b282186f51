# A plugin's item type and model provider.
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from typing_extensions import assert_type

from noetic_py import Context, Extension, FunctionCall, Harness, Item, Message, Model, ModelRequest, extension_item
from noetic_py.models import ModelStream
from noetic_py import step
from noetic_py.plugins import ItemTypeRegistry, ModelRegistry, hookimpl


@extension_item("acme:note")
class Note(Extension):
    text: str
    author: str | None = None


class Acme:
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return f"acme:{self._name}"

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        raise NotImplementedError


class Deaf:
    name = "acme:deaf"


@hookimpl
def register_models(registry: ModelRegistry) -> None:
    registry.provider("acme", Acme)
    registry.provider("acme", lambda name: Acme(name))
    registry.provider("deaf", lambda name: Deaf())  # E


@hookimpl
def register_item_types(registry: ItemTypeRegistry) -> None:
    registry.item_type(Note)
    registry.item_type(Message)  # E


model: Model = Acme("large")
deaf: Model = Deaf()  # E


@step
async def write(x: str, ctx: Context) -> int:
    ctx.items.append(Note(text=x))
    notes = ctx.items.view(Note, branch=ctx.branch)
    assert_type(notes, Sequence[Note])
    last = ctx.items.last(FunctionCall)
    if last is not None:
        assert_type(last.name, str)
    return sum(len(n.text) for n in notes)


def show(i: Item) -> str:
    match i:
        case Note(text=t):
            return t
        case Message():
            return i.text
        case FunctionCall():
            return i.name
        case _:
            return ""


Note(texxt="x")  # E
Note(text=3)  # E
Note("x")  # E
note = Note(text="x", author="a")
note.text = "y"  # E
item: Item = note
text: str = note.author  # E


async def main() -> None:
    async with Harness(model=model, plugins=["acme"]) as h:
        assert_type((await h.run(write, "x", history=[note, Message.user("x")])).value, int)
        await h.run(write, "x", history=["x"])  # E
