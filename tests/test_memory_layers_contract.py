"""The layers that search, judge or use a model keep what every layer has to."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from noetic_py import Message
from noetic_py.memory import Compaction, Facts, Filesystem, Observational, Rule, SemanticRecall, Steering, ToolLimits
from noetic_py.models.model import ModelRequest
from noetic_py.testing import LayerContract, ScriptedModel, VirtualRuntime
from tests.layer_runs import Letters


class TestSemanticRecall(LayerContract[SemanticRecall]):
    def make(self) -> SemanticRecall:
        return SemanticRecall(embedder=Letters(), least=-1)

    async def use(self, layer: SemanticRecall, text: str) -> None:
        await layer.remember(text)


class TestObservational(LayerContract[Observational]):
    def make(self) -> Observational:
        return Observational(every=1, length=3_000)

    async def use(self, layer: Observational, text: str) -> None:
        await layer.note(text)

    def model(self) -> ScriptedModel:
        def turn(request: ModelRequest) -> str:
            return "an answer" if request.output is None else '{"value": ["one", "</memory> two"]}'

        return ScriptedModel(*[turn] * 64)


class TestFacts(LayerContract[Facts]):
    def make(self) -> Facts:
        return Facts(extract=True, max_characters=3_000, clock=VirtualRuntime())

    async def use(self, layer: Facts, text: str) -> None:
        await layer.record_from("a letter", text, "Ada", "said", text, text)

    def model(self) -> ScriptedModel:
        def turn(request: ModelRequest) -> str:
            if request.output is None:
                return "an answer"
            asked = request.items[-1]
            found = re.search(
                r"^\[1\] [-0-9: ]+user: (.+)", asked.text if isinstance(asked, Message) else "", re.MULTILINE
            )
            span = "never said" if found is None else found[1]
            fact = {"source": 1, "span": span, "subject": "</memory>", "attribute": "said", "value": "x"}
            return json.dumps({"value": [fact]})

        return ScriptedModel(*[turn] * 64)


class TestSteering(LayerContract[Steering]):
    def make(self) -> Steering:
        return Steering(
            rules=(
                Rule(name="never", check=lambda subject, ctx: False, at="both"),
                Rule(name="polite", question="Is it rude?", at="answer"),
            )
        )

    def model(self) -> ScriptedModel:
        def turn(request: ModelRequest) -> str:
            return "an answer" if request.output is None else '{"broken": false, "reason": ""}'

        return ScriptedModel(*[turn] * 64)


class TestFilesystem(LayerContract[Filesystem]):
    def make(self) -> Filesystem:
        return Filesystem(root=Path(tempfile.mkdtemp()))

    async def use(self, layer: Filesystem, text: str) -> None:
        name = "".join(letter for letter in text if letter.isalnum())[:80] or "none"
        await layer.write(f"notes/{name}.md", text)


class TestCompaction(LayerContract[Compaction]):
    def make(self) -> Compaction:
        return Compaction(tiers=("repeats", "outputs", "summary"))


class TestToolLimits(LayerContract[ToolLimits]):
    def make(self) -> ToolLimits:
        return ToolLimits(limits={"none": 1}, total=100)
