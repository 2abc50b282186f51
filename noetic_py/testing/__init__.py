"""Tools for tests of agents: scripted models, a clock that stands still, processes that are killed, random programs.

The parts are loaded when they are first used: pytest imports this package early, for its plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetic_py.testing.cassettes import Cassette, CassetteMismatch, replay
    from noetic_py.testing.conformance import (
        BackendContract,
        DamageContract,
        KillContract,
        LastingContract,
        PowerLossContract,
    )
    from noetic_py.testing.dialogues import (
        Ability,
        Dialogue,
        DialogueQuestion,
        DialogueSession,
        DialogueTurn,
        Language,
        random_dialogue,
    )
    from noetic_py.testing.evaluation import ScoreInterval, evaluation_task, score_intervals
    from noetic_py.testing.event_sinks import EventSinkContract
    from noetic_py.testing.faults import Died, FaultyBackend
    from noetic_py.testing.hooks import HookContract
    from noetic_py.testing.item_types import ItemTypeContract
    from noetic_py.testing.layers import LayerContract
    from noetic_py.testing.ledger import Ledger, LedgerLine
    from noetic_py.testing.models import ModelContract
    from noetic_py.testing.random_programs import (
        AmbiguousOutcome,
        ExpectedOutcome,
        Observations,
        RandomProgram,
        assert_expected_outcome,
        expected_outcome,
        random_program,
    )
    from noetic_py.testing.reference import ReferenceContract
    from noetic_py.testing.resumable import assert_resumable_everywhere
    from noetic_py.testing.scripted import ScriptedModel, ScriptExhausted, Turn
    from noetic_py.testing.services import ServiceContract
    from noetic_py.testing.token_counters import TokenCounterContract
    from noetic_py.testing.transforms import TransformContract
    from noetic_py.testing.unfinished import Unfinished
    from noetic_py.testing.virtual import VirtualRuntime

__all__ = [
    "Ability",
    "AmbiguousOutcome",
    "BackendContract",
    "Cassette",
    "CassetteMismatch",
    "DamageContract",
    "Dialogue",
    "DialogueQuestion",
    "DialogueSession",
    "DialogueTurn",
    "Died",
    "EventSinkContract",
    "ExpectedOutcome",
    "FaultyBackend",
    "HookContract",
    "ItemTypeContract",
    "KillContract",
    "Language",
    "LastingContract",
    "LayerContract",
    "Ledger",
    "LedgerLine",
    "ModelContract",
    "Observations",
    "PowerLossContract",
    "RandomProgram",
    "ReferenceContract",
    "ScoreInterval",
    "ScriptExhausted",
    "ScriptedModel",
    "ServiceContract",
    "TokenCounterContract",
    "TransformContract",
    "Turn",
    "Unfinished",
    "VirtualRuntime",
    "assert_expected_outcome",
    "assert_resumable_everywhere",
    "evaluation_task",
    "expected_outcome",
    "random_dialogue",
    "random_program",
    "replay",
    "score_intervals",
]

_MODULES = {
    "Ability": "noetic_py.testing.dialogues",
    "AmbiguousOutcome": "noetic_py.testing.random_programs",
    "BackendContract": "noetic_py.testing.conformance",
    "Cassette": "noetic_py.testing.cassettes",
    "CassetteMismatch": "noetic_py.testing.cassettes",
    "DamageContract": "noetic_py.testing.conformance",
    "Dialogue": "noetic_py.testing.dialogues",
    "DialogueQuestion": "noetic_py.testing.dialogues",
    "DialogueSession": "noetic_py.testing.dialogues",
    "DialogueTurn": "noetic_py.testing.dialogues",
    "Died": "noetic_py.testing.faults",
    "EventSinkContract": "noetic_py.testing.event_sinks",
    "ExpectedOutcome": "noetic_py.testing.random_programs",
    "FaultyBackend": "noetic_py.testing.faults",
    "HookContract": "noetic_py.testing.hooks",
    "ItemTypeContract": "noetic_py.testing.item_types",
    "KillContract": "noetic_py.testing.conformance",
    "Language": "noetic_py.testing.dialogues",
    "LastingContract": "noetic_py.testing.conformance",
    "LayerContract": "noetic_py.testing.layers",
    "Ledger": "noetic_py.testing.ledger",
    "LedgerLine": "noetic_py.testing.ledger",
    "ModelContract": "noetic_py.testing.models",
    "Observations": "noetic_py.testing.random_programs",
    "PowerLossContract": "noetic_py.testing.conformance",
    "RandomProgram": "noetic_py.testing.random_programs",
    "ReferenceContract": "noetic_py.testing.reference",
    "ScoreInterval": "noetic_py.testing.evaluation",
    "ScriptExhausted": "noetic_py.testing.scripted",
    "ScriptedModel": "noetic_py.testing.scripted",
    "ServiceContract": "noetic_py.testing.services",
    "TokenCounterContract": "noetic_py.testing.token_counters",
    "TransformContract": "noetic_py.testing.transforms",
    "Turn": "noetic_py.testing.scripted",
    "Unfinished": "noetic_py.testing.unfinished",
    "VirtualRuntime": "noetic_py.testing.virtual",
    "assert_expected_outcome": "noetic_py.testing.random_programs",
    "assert_resumable_everywhere": "noetic_py.testing.resumable",
    "evaluation_task": "noetic_py.testing.evaluation",
    "expected_outcome": "noetic_py.testing.random_programs",
    "random_dialogue": "noetic_py.testing.dialogues",
    "random_program": "noetic_py.testing.random_programs",
    "replay": "noetic_py.testing.cassettes",
    "score_intervals": "noetic_py.testing.evaluation",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there.
    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
