"""Memory: the layers that a run carries, and the bundle that holds them."""

from noetic_py.memory.functions import function
from noetic_py.memory.hooks import TIMEOUTS, Appended, Guide, Halt, HookName, Recall, Returned, Seed
from noetic_py.memory.layer import Memory, MemoryLayer
from noetic_py.memory.layers.context_item import ContextItem
from noetic_py.memory.layers.context_pool import CatalogueView, ContextPool
from noetic_py.memory.layers.context_queue import ContextQueue
from noetic_py.memory.layers.episodic import Episode, Episodic
from noetic_py.memory.layers.plan import Plan, PlanItem, PlanStatus
from noetic_py.memory.layers.static import StaticContent
from noetic_py.memory.layers.task import TaskState
from noetic_py.memory.layers.temporal import Moments, Temporal
from noetic_py.memory.layers.tools import ToolMemory, ToolUse
from noetic_py.memory.layers.window import HistoryWindow
from noetic_py.memory.layers.working import NestedMemory, WorkingMemory
from noetic_py.memory.listeners import Listener, Listeners
from noetic_py.memory.scopes import LayerStorage, Scope, Slot

__all__ = [
    "TIMEOUTS",
    "Appended",
    "CatalogueView",
    "ContextItem",
    "ContextPool",
    "ContextQueue",
    "Episode",
    "Episodic",
    "Guide",
    "Halt",
    "HistoryWindow",
    "HookName",
    "LayerStorage",
    "Listener",
    "Listeners",
    "Memory",
    "MemoryLayer",
    "Moments",
    "NestedMemory",
    "Plan",
    "PlanItem",
    "PlanStatus",
    "Recall",
    "Returned",
    "Scope",
    "Seed",
    "Slot",
    "StaticContent",
    "TaskState",
    "Temporal",
    "ToolMemory",
    "ToolUse",
    "WorkingMemory",
    "function",
]
