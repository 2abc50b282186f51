"""Memory: the layers that a run carries, and the bundle that holds them. Each is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetic_py.core.memory import Memory as Memory
    from noetic_py.memory.functions import function as function
    from noetic_py.memory.layer import TIMEOUTS as TIMEOUTS
    from noetic_py.memory.layer import AppendedItems as AppendedItems
    from noetic_py.memory.layer import Guide as Guide
    from noetic_py.memory.layer import Halt as Halt
    from noetic_py.memory.layer import HookName as HookName
    from noetic_py.memory.layer import MemoryLayer as MemoryLayer
    from noetic_py.memory.layer import Needs as Needs
    from noetic_py.memory.layer import NeedsApproval as NeedsApproval
    from noetic_py.memory.layer import Recall as Recall
    from noetic_py.memory.layer import Returned as Returned
    from noetic_py.memory.layer import Seed as Seed
    from noetic_py.memory.layers.compaction import Compacted as Compacted
    from noetic_py.memory.layers.compaction import Compaction as Compaction
    from noetic_py.memory.layers.context_pool import CatalogueView as CatalogueView
    from noetic_py.memory.layers.context_pool import ContextPool as ContextPool
    from noetic_py.memory.layers.context_queue import ContextQueue as ContextQueue
    from noetic_py.memory.layers.episodic import Episode as Episode
    from noetic_py.memory.layers.episodic import Episodic as Episodic
    from noetic_py.memory.layers.facts import Fact as Fact
    from noetic_py.memory.layers.facts import Facts as Facts
    from noetic_py.memory.layers.facts import KnownFacts as KnownFacts
    from noetic_py.memory.layers.filesystem import FileRefused as FileRefused
    from noetic_py.memory.layers.filesystem import Filesystem as Filesystem
    from noetic_py.memory.layers.observational import Observational as Observational
    from noetic_py.memory.layers.observational import Observed as Observed
    from noetic_py.memory.layers.permissions import Permissions as Permissions
    from noetic_py.memory.layers.permissions import PermissionState as PermissionState
    from noetic_py.memory.layers.plan import Plan as Plan
    from noetic_py.memory.layers.plan import PlanItem as PlanItem
    from noetic_py.memory.layers.plan import PlanStatus as PlanStatus
    from noetic_py.memory.layers.semantic import Remembered as Remembered
    from noetic_py.memory.layers.semantic import SemanticRecall as SemanticRecall
    from noetic_py.memory.layers.static import StaticContent as StaticContent
    from noetic_py.memory.layers.steering import Judgement as Judgement
    from noetic_py.memory.layers.steering import Rule as Rule
    from noetic_py.memory.layers.steering import Steering as Steering
    from noetic_py.memory.layers.task import TaskState as TaskState
    from noetic_py.memory.layers.temporal import Moments as Moments
    from noetic_py.memory.layers.temporal import Temporal as Temporal
    from noetic_py.memory.layers.tool_groups import ToolGroup as ToolGroup
    from noetic_py.memory.layers.tool_groups import ToolGroups as ToolGroups
    from noetic_py.memory.layers.tool_limits import CountedCalls as CountedCalls
    from noetic_py.memory.layers.tool_limits import ToolLimits as ToolLimits
    from noetic_py.memory.layers.tools import ToolMemory as ToolMemory
    from noetic_py.memory.layers.tools import ToolUse as ToolUse
    from noetic_py.memory.layers.vectors import Embedder as Embedder
    from noetic_py.memory.layers.vectors import Found as Found
    from noetic_py.memory.layers.vectors import Reranker as Reranker
    from noetic_py.memory.layers.vectors import VectorQuery as VectorQuery
    from noetic_py.memory.layers.vectors import VectorStore as VectorStore
    from noetic_py.memory.layers.vectors import WordEmbedder as WordEmbedder
    from noetic_py.memory.layers.window import HistoryWindow as HistoryWindow
    from noetic_py.memory.layers.working import NestedMemory as NestedMemory
    from noetic_py.memory.layers.working import WorkingMemory as WorkingMemory
    from noetic_py.memory.listeners import ContextItem as ContextItem
    from noetic_py.memory.listeners import Listener as Listener
    from noetic_py.memory.listeners import Listeners as Listeners
    from noetic_py.memory.scopes import LayerStorage as LayerStorage
    from noetic_py.memory.scopes import Owner as Owner
    from noetic_py.memory.scopes import Scope as Scope
    from noetic_py.memory.scopes import Slot as Slot
    from noetic_py.tools.permissions import PermissionRule as PermissionRule

__all__ = [
    "TIMEOUTS",
    "AppendedItems",
    "CatalogueView",
    "Compacted",
    "Compaction",
    "ContextItem",
    "ContextPool",
    "ContextQueue",
    "CountedCalls",
    "Embedder",
    "Episode",
    "Episodic",
    "Fact",
    "Facts",
    "FileRefused",
    "Filesystem",
    "Found",
    "Guide",
    "Halt",
    "HistoryWindow",
    "HookName",
    "Judgement",
    "KnownFacts",
    "LayerStorage",
    "Listener",
    "Listeners",
    "Memory",
    "MemoryLayer",
    "Moments",
    "Needs",
    "NeedsApproval",
    "NestedMemory",
    "Observational",
    "Observed",
    "Owner",
    "PermissionRule",
    "PermissionState",
    "Permissions",
    "Plan",
    "PlanItem",
    "PlanStatus",
    "Recall",
    "Remembered",
    "Reranker",
    "Returned",
    "Rule",
    "Scope",
    "Seed",
    "SemanticRecall",
    "Slot",
    "StaticContent",
    "Steering",
    "TaskState",
    "Temporal",
    "ToolGroup",
    "ToolGroups",
    "ToolLimits",
    "ToolMemory",
    "ToolUse",
    "VectorQuery",
    "VectorStore",
    "WordEmbedder",
    "WorkingMemory",
    "function",
]

_HOMES = {
    "AppendedItems": "noetic_py.memory.layer",
    "CatalogueView": "noetic_py.memory.layers.context_pool",
    "Compacted": "noetic_py.memory.layers.compaction",
    "Compaction": "noetic_py.memory.layers.compaction",
    "ContextItem": "noetic_py.memory.listeners",
    "ContextPool": "noetic_py.memory.layers.context_pool",
    "ContextQueue": "noetic_py.memory.layers.context_queue",
    "CountedCalls": "noetic_py.memory.layers.tool_limits",
    "Embedder": "noetic_py.memory.layers.vectors",
    "Episode": "noetic_py.memory.layers.episodic",
    "Episodic": "noetic_py.memory.layers.episodic",
    "Fact": "noetic_py.memory.layers.facts",
    "Facts": "noetic_py.memory.layers.facts",
    "FileRefused": "noetic_py.memory.layers.filesystem",
    "Filesystem": "noetic_py.memory.layers.filesystem",
    "Found": "noetic_py.memory.layers.vectors",
    "Guide": "noetic_py.memory.layer",
    "Halt": "noetic_py.memory.layer",
    "HistoryWindow": "noetic_py.memory.layers.window",
    "HookName": "noetic_py.memory.layer",
    "Judgement": "noetic_py.memory.layers.steering",
    "KnownFacts": "noetic_py.memory.layers.facts",
    "LayerStorage": "noetic_py.memory.scopes",
    "Listener": "noetic_py.memory.listeners",
    "Listeners": "noetic_py.memory.listeners",
    "Memory": "noetic_py.core.memory",
    "MemoryLayer": "noetic_py.memory.layer",
    "Moments": "noetic_py.memory.layers.temporal",
    "Needs": "noetic_py.memory.layer",
    "NeedsApproval": "noetic_py.memory.layer",
    "NestedMemory": "noetic_py.memory.layers.working",
    "Observational": "noetic_py.memory.layers.observational",
    "Observed": "noetic_py.memory.layers.observational",
    "Owner": "noetic_py.memory.scopes",
    "PermissionRule": "noetic_py.tools.permissions",
    "PermissionState": "noetic_py.memory.layers.permissions",
    "Permissions": "noetic_py.memory.layers.permissions",
    "Plan": "noetic_py.memory.layers.plan",
    "PlanItem": "noetic_py.memory.layers.plan",
    "PlanStatus": "noetic_py.memory.layers.plan",
    "Recall": "noetic_py.memory.layer",
    "Remembered": "noetic_py.memory.layers.semantic",
    "Reranker": "noetic_py.memory.layers.vectors",
    "Returned": "noetic_py.memory.layer",
    "Rule": "noetic_py.memory.layers.steering",
    "Scope": "noetic_py.memory.scopes",
    "Seed": "noetic_py.memory.layer",
    "SemanticRecall": "noetic_py.memory.layers.semantic",
    "Slot": "noetic_py.memory.scopes",
    "StaticContent": "noetic_py.memory.layers.static",
    "Steering": "noetic_py.memory.layers.steering",
    "TIMEOUTS": "noetic_py.memory.layer",
    "TaskState": "noetic_py.memory.layers.task",
    "Temporal": "noetic_py.memory.layers.temporal",
    "ToolGroup": "noetic_py.memory.layers.tool_groups",
    "ToolGroups": "noetic_py.memory.layers.tool_groups",
    "ToolLimits": "noetic_py.memory.layers.tool_limits",
    "ToolMemory": "noetic_py.memory.layers.tools",
    "ToolUse": "noetic_py.memory.layers.tools",
    "VectorQuery": "noetic_py.memory.layers.vectors",
    "VectorStore": "noetic_py.memory.layers.vectors",
    "WordEmbedder": "noetic_py.memory.layers.vectors",
    "WorkingMemory": "noetic_py.memory.layers.working",
    "function": "noetic_py.memory.functions",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there.
    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
