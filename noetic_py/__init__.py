"""noetic_py: typed, budgeted, durable agent workflows. What a program needs is here; the rest is in the modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetic_py import errors as errors
    from noetic_py import hooks as hooks
    from noetic_py import memory as memory
    from noetic_py import until as until
    from noetic_py._types import OnError as OnError
    from noetic_py.access import AccessAction as AccessAction
    from noetic_py.access import AccessPolicy as AccessPolicy
    from noetic_py.access import AccessRequest as AccessRequest
    from noetic_py.access import Principal as Principal
    from noetic_py.access import RoleAccess as RoleAccess
    from noetic_py.access import acting_as as acting_as
    from noetic_py.access import current_principal as current_principal
    from noetic_py.artifacts import Artifact as Artifact
    from noetic_py.artifacts import ArtifactOwner as ArtifactOwner
    from noetic_py.artifacts import ArtifactStore as ArtifactStore
    from noetic_py.artifacts import StoredArtifacts as StoredArtifacts
    from noetic_py.attributes import Attributes as Attributes
    from noetic_py.attributes import Key as Key
    from noetic_py.budget import Budget as Budget
    from noetic_py.budget import Remaining as Remaining
    from noetic_py.budget import TokenUsage as TokenUsage
    from noetic_py.budget import Usage as Usage
    from noetic_py.channels import Channel as Channel
    from noetic_py.channels import ChannelHandle as ChannelHandle
    from noetic_py.checkpoints.backend import CheckpointBackend as CheckpointBackend
    from noetic_py.checkpoints.backend import Head as Head
    from noetic_py.checkpoints.backend import Lease as Lease
    from noetic_py.checkpoints.backend import Record as Record
    from noetic_py.checkpoints.in_memory import InMemoryBackend as InMemoryBackend
    from noetic_py.context import Context as Context
    from noetic_py.context import ReadContext as ReadContext
    from noetic_py.context import Services as Services
    from noetic_py.context import StepMeta as StepMeta
    from noetic_py.context import current_context as current_context
    from noetic_py.control import Checkpoint as Checkpoint
    from noetic_py.control import Partial as Partial
    from noetic_py.control import RunResult as RunResult
    from noetic_py.control import RunStatus as RunStatus
    from noetic_py.detached import DetachedRun as DetachedRun
    from noetic_py.events import BudgetWarning as BudgetWarning
    from noetic_py.events import ChannelDropped as ChannelDropped
    from noetic_py.events import Emitted as Emitted
    from noetic_py.events import Event as Event
    from noetic_py.events import ItemsAppended as ItemsAppended
    from noetic_py.events import LayerFailed as LayerFailed
    from noetic_py.events import LoopIteration as LoopIteration
    from noetic_py.events import LoopParked as LoopParked
    from noetic_py.events import ModelFailed as ModelFailed
    from noetic_py.events import ModelFinished as ModelFinished
    from noetic_py.events import ModelStarted as ModelStarted
    from noetic_py.events import ReasoningDelta as ReasoningDelta
    from noetic_py.events import RequestMade as RequestMade
    from noetic_py.events import RunFinished as RunFinished
    from noetic_py.events import RunStarted as RunStarted
    from noetic_py.events import StepCommitted as StepCommitted
    from noetic_py.events import StepStarted as StepStarted
    from noetic_py.events import StepVoided as StepVoided
    from noetic_py.events import TextDelta as TextDelta
    from noetic_py.events import ToolFinished as ToolFinished
    from noetic_py.events import ToolStarted as ToolStarted
    from noetic_py.events import ViewMade as ViewMade
    from noetic_py.harness import Harness as Harness
    from noetic_py.hooks import Hook as Hook
    from noetic_py.hooks import HookContext as HookContext
    from noetic_py.items import ContentPart as ContentPart
    from noetic_py.items import Extension as Extension
    from noetic_py.items import FunctionCall as FunctionCall
    from noetic_py.items import FunctionCallOutput as FunctionCallOutput
    from noetic_py.items import InputFile as InputFile
    from noetic_py.items import InputImage as InputImage
    from noetic_py.items import InputText as InputText
    from noetic_py.items import Item as Item
    from noetic_py.items import JsonValue as JsonValue
    from noetic_py.items import Message as Message
    from noetic_py.items import ModelInput as ModelInput
    from noetic_py.items import Opaque as Opaque
    from noetic_py.items import OutputText as OutputText
    from noetic_py.items import Reasoning as Reasoning
    from noetic_py.items import Refusal as Refusal
    from noetic_py.items import Role as Role
    from noetic_py.items import extension_item as extension_item
    from noetic_py.log import ItemLog as ItemLog
    from noetic_py.log import ItemView as ItemView
    from noetic_py.memory.layer import Memory as Memory
    from noetic_py.memory.layer import MemoryLayer as MemoryLayer
    from noetic_py.memory.view import LayerUsage as LayerUsage
    from noetic_py.models.base import Model as Model
    from noetic_py.models.base import ModelEvent as ModelEvent
    from noetic_py.models.base import ModelRequest as ModelRequest
    from noetic_py.models.base import ModelResponse as ModelResponse
    from noetic_py.models.base import ModelSettings as ModelSettings
    from noetic_py.models.base import ModelStream as ModelStream
    from noetic_py.options import ResumeOptions as ResumeOptions
    from noetic_py.options import RunOptions as RunOptions
    from noetic_py.pending import Answer as Answer
    from noetic_py.pending import Ask as Ask
    from noetic_py.pending import PendingRequest as PendingRequest
    from noetic_py.progress import Progress as Progress
    from noetic_py.progress import ProgressEntry as ProgressEntry
    from noetic_py.progress import ReadProgress as ReadProgress
    from noetic_py.redaction import redact as redact
    from noetic_py.runs import RunInfo as RunInfo
    from noetic_py.runs import Runs as Runs
    from noetic_py.runtime import Runtime as Runtime
    from noetic_py.secret import Secret as Secret
    from noetic_py.sessions.data import SessionData as SessionData
    from noetic_py.sessions.desk import SessionEdit as SessionEdit
    from noetic_py.sessions.feed import SessionStream as SessionStream
    from noetic_py.sessions.keys import SessionKey as SessionKey
    from noetic_py.sessions.keys import SessionPolicy as SessionPolicy
    from noetic_py.sessions.mail import Delivery as Delivery
    from noetic_py.sessions.mail import QueuedMessage as QueuedMessage
    from noetic_py.sessions.mail import Sent as Sent
    from noetic_py.sessions.session import Session as Session
    from noetic_py.sessions.session import Sessions as Sessions
    from noetic_py.state import StateBag as StateBag
    from noetic_py.steps.code import step as step
    from noetic_py.steps.flow import Settled as Settled
    from noetic_py.steps.flow import branch as branch
    from noetic_py.steps.flow import each as each
    from noetic_py.steps.flow import parallel as parallel
    from noetic_py.steps.flow import race as race
    from noetic_py.steps.flow import sequence as sequence
    from noetic_py.steps.flow import settle as settle
    from noetic_py.steps.handoff import Handoff as Handoff
    from noetic_py.steps.loop import every as every
    from noetic_py.steps.loop import loop as loop
    from noetic_py.steps.model import call_model as call_model
    from noetic_py.steps.spawn import spawn as spawn
    from noetic_py.steps.spawn import with_memory as with_memory
    from noetic_py.steps.step import NOT_DONE as NOT_DONE
    from noetic_py.steps.step import NotDone as NotDone
    from noetic_py.steps.step import Retry as Retry
    from noetic_py.steps.step import Step as Step
    from noetic_py.steps.step import StepOptions as StepOptions
    from noetic_py.steps.tool import call_tool as call_tool
    from noetic_py.steps.tool import step_tool as step_tool
    from noetic_py.stopping import Stopping as Stopping
    from noetic_py.streams import RunHandle as RunHandle
    from noetic_py.streams import RunStream as RunStream
    from noetic_py.tools import Inject as Inject
    from noetic_py.tools import Tool as Tool
    from noetic_py.tools import tool as tool
    from noetic_py.traces import Trace as Trace

__all__ = [
    "NOT_DONE",
    "AccessAction",
    "AccessPolicy",
    "AccessRequest",
    "Answer",
    "Artifact",
    "ArtifactOwner",
    "ArtifactStore",
    "Ask",
    "Attributes",
    "Budget",
    "BudgetWarning",
    "Channel",
    "ChannelDropped",
    "ChannelHandle",
    "Checkpoint",
    "CheckpointBackend",
    "ContentPart",
    "Context",
    "Delivery",
    "DetachedRun",
    "Emitted",
    "Event",
    "Extension",
    "FunctionCall",
    "FunctionCallOutput",
    "Handoff",
    "Harness",
    "Head",
    "Hook",
    "HookContext",
    "InMemoryBackend",
    "Inject",
    "InputFile",
    "InputImage",
    "InputText",
    "Item",
    "ItemLog",
    "ItemView",
    "ItemsAppended",
    "JsonValue",
    "Key",
    "LayerFailed",
    "LayerUsage",
    "Lease",
    "LoopIteration",
    "LoopParked",
    "Memory",
    "MemoryLayer",
    "Message",
    "Model",
    "ModelEvent",
    "ModelFailed",
    "ModelFinished",
    "ModelInput",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "ModelStarted",
    "ModelStream",
    "NotDone",
    "OnError",
    "Opaque",
    "OutputText",
    "Partial",
    "PendingRequest",
    "Principal",
    "Progress",
    "ProgressEntry",
    "QueuedMessage",
    "ReadContext",
    "ReadProgress",
    "Reasoning",
    "ReasoningDelta",
    "Record",
    "Refusal",
    "Remaining",
    "RequestMade",
    "ResumeOptions",
    "Retry",
    "Role",
    "RoleAccess",
    "RunFinished",
    "RunHandle",
    "RunInfo",
    "RunOptions",
    "RunResult",
    "RunStarted",
    "RunStatus",
    "RunStream",
    "Runs",
    "Runtime",
    "Secret",
    "Sent",
    "Services",
    "Session",
    "SessionData",
    "SessionEdit",
    "SessionKey",
    "SessionPolicy",
    "SessionStream",
    "Sessions",
    "Settled",
    "StateBag",
    "Step",
    "StepCommitted",
    "StepMeta",
    "StepOptions",
    "StepStarted",
    "StepVoided",
    "Stopping",
    "StoredArtifacts",
    "TextDelta",
    "TokenUsage",
    "Tool",
    "ToolFinished",
    "ToolStarted",
    "Trace",
    "Usage",
    "ViewMade",
    "acting_as",
    "branch",
    "call_model",
    "call_tool",
    "current_context",
    "current_principal",
    "each",
    "errors",
    "every",
    "extension_item",
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

# Where a name lives: a module is loaded when one of its names is first used, so that importing costs little.
_HOMES = {
    "AccessAction": "noetic_py.access",
    "AccessPolicy": "noetic_py.access",
    "AccessRequest": "noetic_py.access",
    "Answer": "noetic_py.pending",
    "Artifact": "noetic_py.artifacts",
    "ArtifactOwner": "noetic_py.artifacts",
    "ArtifactStore": "noetic_py.artifacts",
    "Ask": "noetic_py.pending",
    "Attributes": "noetic_py.attributes",
    "Budget": "noetic_py.budget",
    "BudgetWarning": "noetic_py.events",
    "Channel": "noetic_py.channels",
    "ChannelDropped": "noetic_py.events",
    "ChannelHandle": "noetic_py.channels",
    "Checkpoint": "noetic_py.control",
    "CheckpointBackend": "noetic_py.checkpoints.backend",
    "ContentPart": "noetic_py.items",
    "Context": "noetic_py.context",
    "DetachedRun": "noetic_py.detached",
    "Emitted": "noetic_py.events",
    "Event": "noetic_py.events",
    "Extension": "noetic_py.items",
    "FunctionCall": "noetic_py.items",
    "FunctionCallOutput": "noetic_py.items",
    "Handoff": "noetic_py.steps.handoff",
    "Harness": "noetic_py.harness",
    "Head": "noetic_py.checkpoints.backend",
    "Hook": "noetic_py.hooks",
    "HookContext": "noetic_py.hooks",
    "InMemoryBackend": "noetic_py.checkpoints.in_memory",
    "Inject": "noetic_py.tools",
    "InputFile": "noetic_py.items",
    "InputImage": "noetic_py.items",
    "InputText": "noetic_py.items",
    "Item": "noetic_py.items",
    "ItemLog": "noetic_py.log",
    "ItemView": "noetic_py.log",
    "ItemsAppended": "noetic_py.events",
    "JsonValue": "noetic_py.items",
    "Key": "noetic_py.attributes",
    "LayerFailed": "noetic_py.events",
    "LayerUsage": "noetic_py.memory.view",
    "Lease": "noetic_py.checkpoints.backend",
    "LoopIteration": "noetic_py.events",
    "LoopParked": "noetic_py.events",
    "Memory": "noetic_py.memory.layer",
    "MemoryLayer": "noetic_py.memory.layer",
    "Message": "noetic_py.items",
    "Model": "noetic_py.models.base",
    "ModelEvent": "noetic_py.models.base",
    "ModelFailed": "noetic_py.events",
    "ModelFinished": "noetic_py.events",
    "ModelInput": "noetic_py.items",
    "ModelRequest": "noetic_py.models.base",
    "ModelResponse": "noetic_py.models.base",
    "ModelSettings": "noetic_py.models.base",
    "ModelStarted": "noetic_py.events",
    "ModelStream": "noetic_py.models.base",
    "NOT_DONE": "noetic_py.steps.step",
    "NotDone": "noetic_py.steps.step",
    "OnError": "noetic_py._types",
    "Opaque": "noetic_py.items",
    "OutputText": "noetic_py.items",
    "Partial": "noetic_py.control",
    "PendingRequest": "noetic_py.pending",
    "Principal": "noetic_py.access",
    "Progress": "noetic_py.progress",
    "ProgressEntry": "noetic_py.progress",
    "ReadContext": "noetic_py.context",
    "ReadProgress": "noetic_py.progress",
    "Reasoning": "noetic_py.items",
    "ReasoningDelta": "noetic_py.events",
    "Record": "noetic_py.checkpoints.backend",
    "Refusal": "noetic_py.items",
    "Remaining": "noetic_py.budget",
    "RequestMade": "noetic_py.events",
    "ResumeOptions": "noetic_py.options",
    "Retry": "noetic_py.steps.step",
    "Role": "noetic_py.items",
    "RoleAccess": "noetic_py.access",
    "RunFinished": "noetic_py.events",
    "RunHandle": "noetic_py.streams",
    "RunInfo": "noetic_py.runs",
    "RunOptions": "noetic_py.options",
    "RunResult": "noetic_py.control",
    "RunStarted": "noetic_py.events",
    "RunStatus": "noetic_py.control",
    "RunStream": "noetic_py.streams",
    "Runs": "noetic_py.runs",
    "Runtime": "noetic_py.runtime",
    "Secret": "noetic_py.secret",  # pragma: allowlist secret
    "Services": "noetic_py.context",
    "Session": "noetic_py.sessions.session",
    "SessionData": "noetic_py.sessions.data",
    "SessionEdit": "noetic_py.sessions.desk",
    "SessionStream": "noetic_py.sessions.feed",
    "Delivery": "noetic_py.sessions.mail",
    "QueuedMessage": "noetic_py.sessions.mail",
    "Sent": "noetic_py.sessions.mail",
    "SessionKey": "noetic_py.sessions.keys",
    "SessionPolicy": "noetic_py.sessions.keys",
    "Sessions": "noetic_py.sessions.session",
    "Settled": "noetic_py.steps.flow",
    "StateBag": "noetic_py.state",
    "Step": "noetic_py.steps.step",
    "StepCommitted": "noetic_py.events",
    "StepMeta": "noetic_py.context",
    "StepOptions": "noetic_py.steps.step",
    "StepStarted": "noetic_py.events",
    "StepVoided": "noetic_py.events",
    "Stopping": "noetic_py.stopping",
    "StoredArtifacts": "noetic_py.artifacts",
    "TextDelta": "noetic_py.events",
    "TokenUsage": "noetic_py.budget",
    "Tool": "noetic_py.tools",
    "ToolFinished": "noetic_py.events",
    "ToolStarted": "noetic_py.events",
    "Trace": "noetic_py.traces",
    "Usage": "noetic_py.budget",
    "ViewMade": "noetic_py.events",
    "acting_as": "noetic_py.access",
    "branch": "noetic_py.steps.flow",
    "call_model": "noetic_py.steps.model",
    "call_tool": "noetic_py.steps.tool",
    "current_context": "noetic_py.context",
    "current_principal": "noetic_py.access",
    "each": "noetic_py.steps.flow",
    "every": "noetic_py.steps.loop",
    "extension_item": "noetic_py.items",
    "loop": "noetic_py.steps.loop",
    "parallel": "noetic_py.steps.flow",
    "race": "noetic_py.steps.flow",
    "redact": "noetic_py.redaction",
    "sequence": "noetic_py.steps.flow",
    "settle": "noetic_py.steps.flow",
    "spawn": "noetic_py.steps.spawn",
    "step": "noetic_py.steps.code",
    "step_tool": "noetic_py.steps.tool",
    "tool": "noetic_py.tools",
    "with_memory": "noetic_py.steps.spawn",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there.
    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is not None:
            found = getattr(import_module(home), name)
        elif name in __all__:
            found = import_module(f"noetic_py.{name}")
        else:
            raise AttributeError(f"module 'noetic_py' has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
