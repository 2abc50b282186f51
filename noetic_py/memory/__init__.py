"""Memory: the layers that a run carries, and the bundle that holds them."""

from noetic_py.memory.functions import function
from noetic_py.memory.hooks import TIMEOUTS, Appended, Guide, Halt, HookName, Recall, Returned, Seed
from noetic_py.memory.layer import Memory, MemoryLayer
from noetic_py.memory.layers.working import NestedMemory, WorkingMemory
from noetic_py.memory.scopes import LayerStorage, Scope, Slot

__all__ = [
    "TIMEOUTS",
    "Appended",
    "Guide",
    "Halt",
    "HookName",
    "LayerStorage",
    "Memory",
    "MemoryLayer",
    "NestedMemory",
    "Recall",
    "Returned",
    "Scope",
    "Seed",
    "Slot",
    "WorkingMemory",
    "function",
]
