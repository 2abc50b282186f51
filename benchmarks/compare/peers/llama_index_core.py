"""LlamaIndex's `FunctionAgent`, which is a workflow, with a scripted model, and its chat memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, MessageRole, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool

Run = Callable[[], Awaitable[int]]


async def lookup(key: str) -> str:
    """Look a key up."""
    return key


class Scripted(FunctionCallingLLM):
    """A model that calls a tool again and again, then answers."""

    left: int
    stamp: Callable[[], None]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="scripted", is_function_calling_model=True, is_chat_model=True)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self.stamp()
        self.left -= 1
        if self.left < 0:
            return ChatResponse(message=ChatMessage("done", role=MessageRole.ASSISTANT))
        call = ToolCallBlock(tool_call_id=f"call_{self.left}", tool_name="lookup", tool_kwargs={"key": "tides"})
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, blocks=[call]))

    def _prepare_chat_with_tools(self, tools: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"messages": kwargs.get("chat_history") or []}

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        return [
            ToolSelection(tool_id=block.tool_call_id, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]

    def chat(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    complete = acomplete = stream_chat = stream_complete = astream_chat = astream_complete = chat


def w4(turns: int, stamp: Callable[[], None]) -> Run:
    model = Scripted(left=turns, stamp=stamp)
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(async_fn=lookup)], llm=model, streaming=False, timeout=None)

    async def run() -> int:
        response = await agent.run("Look up the tides.", max_iterations=turns + 2)
        return len(response.tool_calls)

    return run


def w6() -> Callable[[list[str]], Awaitable[object]]:
    async def make(texts: list[str]) -> ChatMemoryBuffer:
        roles = (MessageRole.USER, MessageRole.ASSISTANT)
        memory = ChatMemoryBuffer.from_defaults()
        await memory.aput_messages([ChatMessage(text, role=roles[n % 2]) for n, text in enumerate(texts)])
        return memory

    return make
