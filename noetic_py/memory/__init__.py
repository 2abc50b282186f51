"""Memory: the layers that a run carries, and the bundle that holds them."""

from noetic_py.memory.functions import function
from noetic_py.memory.hooks import TIMEOUTS, Appended, Guide, Halt, HookName, Recall, Returned, Seed
from noetic_py.memory.layer import Memory, MemoryLayer
from noetic_py.memory.layers.context_item import ContextItem
from noetic_py.memory.layers.context_pool import CatalogueView, ContextPool
from noetic_py.memory.layers.context_queue import ContextQueue
from noetic_py.memory.listeners import Listener, Listeners
from noetic_py.memory.scopes import LayerStorage, Scope, Slot

__all__ = [
    "TIMEOUTS",
    "Appended",
    "CatalogueView",
    "ContextItem",
    "ContextPool",
    "ContextQueue",
    "Guide",
    "Halt",
    "HookName",
    "LayerStorage",
    "Listener",
    "Listeners",
    "Memory",
    "MemoryLayer",
    "Recall",
    "Returned",
    "Scope",
    "Seed",
    "Slot",
    "function",
]
