"""noetic_py: typed, budgeted, durable agent workflows. What a program needs is here; the rest is in the modules."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetic_py import errors as errors
    from noetic_py import memory as memory
    from noetic_py import until as until
    from noetic_py.access import Principal as Principal
    from noetic_py.access import acting_as as acting_as
    from noetic_py.channels import Channel as Channel
    from noetic_py.checkpoints.memory import InMemoryBackend as InMemoryBackend
    from noetic_py.context import hooks as hooks
    from noetic_py.context.context import Context as Context
    from noetic_py.context.context import current_context as current_context
    from noetic_py.context.hooks import HookContext as HookContext
    from noetic_py.context.read import ReadContext as ReadContext
    from noetic_py.context.step import NOT_DONE as NOT_DONE
    from noetic_py.context.step import Retry as Retry
    from noetic_py.context.step import Step as Step
    from noetic_py.core.budget import Budget as Budget
    from noetic_py.core.budget import TokenUsage as TokenUsage
    from noetic_py.core.control import Answer as Answer
    from noetic_py.core.control import Ask as Ask
    from noetic_py.core.control import Checkpoint as Checkpoint
    from noetic_py.core.control import PendingRequest as PendingRequest
    from noetic_py.core.control import RunResult as RunResult
    from noetic_py.core.control import RunStatus as RunStatus
    from noetic_py.core.control import SessionKey as SessionKey
    from noetic_py.core.events import Emitted as Emitted
    from noetic_py.core.events import Event as Event
    from noetic_py.core.events import ItemsAppended as ItemsAppended
    from noetic_py.core.events import RunFinished as RunFinished
    from noetic_py.core.events import StepStarted as StepStarted
    from noetic_py.core.events import TextDelta as TextDelta
    from noetic_py.core.events import ToolFinished as ToolFinished
    from noetic_py.core.events import ToolStarted as ToolStarted
    from noetic_py.core.items import Extension as Extension
    from noetic_py.core.items import FunctionCall as FunctionCall
    from noetic_py.core.items import FunctionCallOutput as FunctionCallOutput
    from noetic_py.core.items import InputFile as InputFile
    from noetic_py.core.items import InputImage as InputImage
    from noetic_py.core.items import InputText as InputText
    from noetic_py.core.items import Item as Item
    from noetic_py.core.items import JsonValue as JsonValue
    from noetic_py.core.items import Message as Message
    from noetic_py.core.items import Opaque as Opaque
    from noetic_py.core.items import OutputText as OutputText
    from noetic_py.core.items import Reasoning as Reasoning
    from noetic_py.core.items import extension_item as extension_item
    from noetic_py.core.memory import Memory as Memory
    from noetic_py.core.runtime import Trace as Trace
    from noetic_py.core.secrets import Secret as Secret
    from noetic_py.core.state import Key as Key
    from noetic_py.core.state import StateBag as StateBag
    from noetic_py.harness import Harness as Harness
    from noetic_py.memory.layer import MemoryLayer as MemoryLayer
    from noetic_py.models.model import Model as Model
    from noetic_py.models.model import ModelRequest as ModelRequest
    from noetic_py.models.model import ModelResponse as ModelResponse
    from noetic_py.models.model import ModelSettings as ModelSettings
    from noetic_py.redaction import redact as redact
    from noetic_py.runner.registry import RunHandle as RunHandle
    from noetic_py.runner.registry import RunStream as RunStream
    from noetic_py.sessions.policy import SessionPolicy as SessionPolicy
    from noetic_py.sessions.session import Session as Session
    from noetic_py.steps.code import step as step
    from noetic_py.steps.flow import branch as branch
    from noetic_py.steps.flow import each as each
    from noetic_py.steps.flow import parallel as parallel
    from noetic_py.steps.flow import race as race
    from noetic_py.steps.flow import sequence as sequence
    from noetic_py.steps.flow import settle as settle
    from noetic_py.steps.handoff import Handoff as Handoff
    from noetic_py.steps.handoff import handoff_to as handoff_to
    from noetic_py.steps.loop import every as every
    from noetic_py.steps.loop import loop as loop
    from noetic_py.steps.model import call_model as call_model
    from noetic_py.steps.spawn import spawn as spawn
    from noetic_py.steps.spawn import with_memory as with_memory
    from noetic_py.steps.tool import call_tool as call_tool
    from noetic_py.steps.tool import step_tool as step_tool
    from noetic_py.tools import Inject as Inject
    from noetic_py.tools import Tool as Tool
    from noetic_py.tools import tool as tool

__all__ = [
    "NOT_DONE",
    "Answer",
    "Ask",
    "Budget",
    "Channel",
    "Checkpoint",
    "Context",
    "Emitted",
    "Event",
    "Extension",
    "FunctionCall",
    "FunctionCallOutput",
    "Handoff",
    "Harness",
    "HookContext",
    "InMemoryBackend",
    "Inject",
    "InputFile",
    "InputImage",
    "InputText",
    "Item",
    "ItemsAppended",
    "JsonValue",
    "Key",
    "Memory",
    "MemoryLayer",
    "Message",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "Opaque",
    "OutputText",
    "PendingRequest",
    "Principal",
    "ReadContext",
    "Reasoning",
    "Retry",
    "RunFinished",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "RunStream",
    "Secret",
    "Session",
    "SessionKey",
    "SessionPolicy",
    "StateBag",
    "Step",
    "StepStarted",
    "TextDelta",
    "TokenUsage",
    "Tool",
    "ToolFinished",
    "ToolStarted",
    "Trace",
    "acting_as",
    "branch",
    "call_model",
    "call_tool",
    "current_context",
    "each",
    "errors",
    "every",
    "extension_item",
    "handoff_to",
    "hooks",
    "loop",
    "memory",
    "parallel",
    "race",
    "redact",
    "sequence",
    "settle",
    "spawn",
    "step",
    "step_tool",
    "tool",
    "until",
    "with_memory",
]

__version__ = "0.1.0"

# Where a name lives: a module is loaded when one of its names is first used, so that importing costs little. Checkers
# read the imports above and `__all__`, and cannot read this; a test compares the three.
_HOMES = {
    "Answer": "noetic_py.core.control",
    "Ask": "noetic_py.core.control",
    "Budget": "noetic_py.core.budget",
    "Channel": "noetic_py.channels",
    "Checkpoint": "noetic_py.core.control",
    "Context": "noetic_py.context.context",
    "Emitted": "noetic_py.core.events",
    "Event": "noetic_py.core.events",
    "Extension": "noetic_py.core.items",
    "FunctionCall": "noetic_py.core.items",
    "FunctionCallOutput": "noetic_py.core.items",
    "Handoff": "noetic_py.steps.handoff",
    "Harness": "noetic_py.harness",
    "HookContext": "noetic_py.context.hooks",
    "InMemoryBackend": "noetic_py.checkpoints.memory",
    "Inject": "noetic_py.tools",
    "InputFile": "noetic_py.core.items",
    "InputImage": "noetic_py.core.items",
    "InputText": "noetic_py.core.items",
    "Item": "noetic_py.core.items",
    "ItemsAppended": "noetic_py.core.events",
    "JsonValue": "noetic_py.core.items",
    "Key": "noetic_py.core.state",
    "Memory": "noetic_py.core.memory",
    "MemoryLayer": "noetic_py.memory.layer",
    "Message": "noetic_py.core.items",
    "Model": "noetic_py.models.model",
    "ModelRequest": "noetic_py.models.model",
    "ModelResponse": "noetic_py.models.model",
    "ModelSettings": "noetic_py.models.model",
    "NOT_DONE": "noetic_py.context.step",
    "Opaque": "noetic_py.core.items",
    "OutputText": "noetic_py.core.items",
    "PendingRequest": "noetic_py.core.control",
    "Principal": "noetic_py.access",
    "ReadContext": "noetic_py.context.read",
    "Reasoning": "noetic_py.core.items",
    "Retry": "noetic_py.context.step",
    "RunFinished": "noetic_py.core.events",
    "RunHandle": "noetic_py.runner.registry",
    "RunResult": "noetic_py.core.control",
    "RunStatus": "noetic_py.core.control",
    "RunStream": "noetic_py.runner.registry",
    "Secret": "noetic_py.core.secrets",  # pragma: allowlist secret
    "Session": "noetic_py.sessions.session",
    "SessionKey": "noetic_py.core.control",
    "SessionPolicy": "noetic_py.sessions.policy",
    "StateBag": "noetic_py.core.state",
    "Step": "noetic_py.context.step",
    "StepStarted": "noetic_py.core.events",
    "TextDelta": "noetic_py.core.events",
    "TokenUsage": "noetic_py.core.budget",
    "Tool": "noetic_py.tools",
    "ToolFinished": "noetic_py.core.events",
    "ToolStarted": "noetic_py.core.events",
    "Trace": "noetic_py.core.runtime",
    "acting_as": "noetic_py.access",
    "branch": "noetic_py.steps.flow",
    "call_model": "noetic_py.steps.model",
    "call_tool": "noetic_py.steps.tool",
    "current_context": "noetic_py.context.context",
    "each": "noetic_py.steps.flow",
    "errors": "noetic_py.errors",
    "every": "noetic_py.steps.loop",
    "extension_item": "noetic_py.core.items",
    "handoff_to": "noetic_py.steps.handoff",
    "hooks": "noetic_py.context.hooks",
    "loop": "noetic_py.steps.loop",
    "memory": "noetic_py.memory",
    "parallel": "noetic_py.steps.flow",
    "race": "noetic_py.steps.flow",
    "redact": "noetic_py.redaction",
    "sequence": "noetic_py.steps.flow",
    "settle": "noetic_py.steps.flow",
    "spawn": "noetic_py.steps.spawn",
    "step": "noetic_py.steps.code",
    "step_tool": "noetic_py.steps.tool",
    "tool": "noetic_py.tools",
    "until": "noetic_py.until",
    "with_memory": "noetic_py.steps.spawn",
}

# Where a name that is missing here is looked for, so that the error says where to import it from.
_MORE = ("errors", "memory", "models", "tools", "core.events", "testing", "plugins", "checkpoints", "channels", "until")


def _place_of(name: str) -> str | None:
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        return None  # a module is imported and not looked up, and loads no other one
    for place in (f"{__name__}.{each}" for each in _MORE):
        module = import_module(place)
        if name in getattr(module, "__all__", ()) or getattr(vars(module).get(name), "__module__", None) == place:
            return place
    return None


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            place = _place_of(name)
            if place is not None:
                # An AttributeError would be replaced by Python's own error, which says no more than that it is missing.
                raise ImportError(
                    f"'noetic_py' has no name {name!r}: it is in {place!r}. Try: from {place} import {name}",
                    name=__name__,
                )
            raise AttributeError(f"module 'noetic_py' has no attribute {name!r}")
        home = import_module(_HOMES[name])
        found = getattr(home, name, home)  # a module is its own home
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
