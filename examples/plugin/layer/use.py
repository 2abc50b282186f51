from noetic_py import Harness, Memory
from @MODULE@ import Notes


class Mem(Memory):
    notes: Notes = Notes()


harness = Harness(model="openai:gpt-5-mini", memory=Mem())
