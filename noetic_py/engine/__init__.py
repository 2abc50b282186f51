"""The interpreter, private: it runs the tree of steps and writes the journal.

`execute.py` holds the one function that executes a step; `flow.py`, `loop.py`, `spawn.py`, `model.py` and `tool.py` say
what each kind does; `state.py` holds what is alive while it runs; `ledger.py` writes what happened, and `fold.py` reads
it back.
"""
