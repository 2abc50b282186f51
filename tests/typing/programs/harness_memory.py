"""The bundle of a harness is an instance of a `Memory` subclass, or nothing."""

from __future__ import annotations

from typing import assert_type

from noetic_py import Context, Harness, Memory, StateBag
from noetic_py.memory import WorkingMemory


class Mem(Memory):
    notes: WorkingMemory = WorkingMemory()


assert_type(Harness(), Harness[Memory])
assert_type(Harness(memory=None), Harness[Memory])
assert_type(Harness(memory=Mem()), Harness[Mem])
Harness(memory=Mem)  # E
Harness(memory=WorkingMemory())  # E

assert_type(Context(), Context[Memory, StateBag])
assert_type(Context(state=3), Context[Memory, int])
