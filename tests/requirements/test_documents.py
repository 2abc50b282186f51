"""Which test shows which block of code of the five documents.

An example has a test of its own, `test_document_000_...`; a block that only declares a method or a type is shown by the
tests of its row, of which the beginning of the names is given.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

BLOCKS: Mapping[str, Mapping[str, str]] = {
    "000": {
        "Usage Example": "test_document_000_usage_example",
        "create": "test_000_02_",
        "withHistory": "test_000_03_",
        "addMessage": "test_000_04_",
        "addInput": "test_000_05_",
        "addToolResult": "test_000_06_",
        "getHistory": "test_000_07_",
        "getHistoryMutable": "test_000_08_",
        "setState": "test_000_09_",
        "getState": "test_000_10_",
        "getState, with a type": "test_000_11_",
        "hasState": "test_000_12_",
        "getAllState": "test_000_13_",
        "incrementTurn": "test_000_14_",
        "getTurnCount": "test_000_15_",
        "clear": "test_000_16_",
        "copy": "test_000_17_",
        "historySize": "test_000_18_",
        "extractLastUserMessageText": "test_000_19_",
        "extractLastUserMessageText, with a fallback": "test_000_20_",
        "ensureTraceContext": "test_000_21_",
        "createChildContext": "test_000_27_28_29_the_truth_table_of_the_document",
        "runAsCurrent": "test_000_31_",
        "callAsCurrent": "test_000_32_",
        "current": "test_000_33_",
        "withTraceContext": "test_000_22_",
        "withRequestId": "test_000_23_",
        "parentTraceId, parentSpanId and requestId": "test_000_24_",
        "hasTraceContext": "test_000_25_",
        "fork": "test_000_26_",
    },
    "001": {
        "ctx = InvocationContext(...)": "test_document_001_a_context_with_session_user_app_agent_and_state",
        "ctx.derive(...)": "test_001_20_",
        ".clear_session()": "test_001_24_",
        "Inside a custom tool's _arun()": "test_document_001_inside_a_custom_tool",
        "if ctx.event_callback is not None": "test_document_001_nobody_has_to_listen",
        "ctx.get_events(...)": "test_document_001_get_events_of_this_branch_in_the_current_invocation",
        "def instructions(ctx: ReadonlyContext)": "test_document_001_instructions_get_a_read_only_context",
        "async def after_model(ctx: CallbackContext, ...)": "test_001_40_the_documents_own_example",
    },
    "002": {
        "Quick Example": "test_document_002_quick_example",
        "ContextShape": "test_document_002_shape_of_a_context",
        "ctx.memory['working-memory']": "test_document_002_snapshot_and_update_of_a_layer",
        "memory() and InferMemory": "test_document_002_types_of_memory",
        "interface TokenUsage": "test_document_002_token_usage",
        "interface ItemLog": "test_document_002_item_log",
        "channel('approvals', ...)": "test_document_002_channels",
        "ctx.checkpoint()": "test_document_002_checkpoint",
        "ctx.complete(finalValue)": "test_document_002_complete",
        "ctx.abort('user cancelled')": "test_document_002_abort",
        "interface ItemBase": "test_002_28_",
        "interface MessageItem": "test_002_29_",
        "interface FunctionCallItem": "test_002_30_",
        "interface FunctionCallOutputItem": "test_002_31_",
        "interface ReasoningItem": "test_002_32_",
        "interface ExtensionItem": "test_002_33_",
        "ContentPart": "test_002_34_",
        "ctx.lastLayerUsage": "test_document_002_usage_by_layer",
    },
    "003": {
        "item = ContextItem(...)": "test_document_003_an_entry",
        "cq = ContextQueue(limit=10)": "test_document_003_creating_a_queue",
        "cq: ContextQueue[str]": "test_document_003_a_queue_of_one_type",
        "ContextQueue(limit=20, tags=[...])": "test_document_003_tags",
        "cq.append, cq.clear and cq.items": "test_document_003_appending_clearing_and_reading",
        "Agent('summarizer', ...)": "test_document_003_an_entry_that_a_tool_returns_goes_into_the_queue",
        "context_queue=ContextQueue(limit=20)": "test_document_003_a_queue_of_ones_own",
        "agent_cq, turn_cq and tool_cq": "test_document_003_branching_a_queue",
        "cq.branch(hooks=[...])": "test_document_003_listeners_of_a_branch",
        "@cq.before_append and @cq.after_append": "test_003_25_the_document_s_own_example",
        "cq.to_dict()": "test_document_003_a_queue_as_data",
        "pool = ContextPool(limit=50)": "test_document_003_creating_a_pool",
        "pool: ContextPool[Report]": "test_document_003_a_pool_of_one_type",
        "pool.items, pool.limit and pool.catalogue()": "test_document_003_reading_a_pool",
        "Agent('reader', ...)": "test_document_003_an_entry_with_an_id_goes_into_the_pool",
        "@pool.after_add, context_pool=pool": "test_document_003_a_pool_of_ones_own_with_a_listener",
        "summarize(text, memory), answer(..., pool)": "test_document_003_tools_read_queue_and_pool_by_annotation",
        "think(question, memory=None)": "test_document_003_an_optional_queue",
        "Turn('think', kwargs=...)": "test_document_003_an_explicit_queue_wins",
        "parent.branch() of a pool": "test_document_003_branching_a_pool",
        "@pool.before_add and @pool.after_add": "test_document_003_listeners_of_a_pool",
        "pool.to_dict()": "test_document_003_a_pool_as_data",
    },
    "004": {
        "the drawing of the stateless engine": "test_document_004_one_harness_with_a_state_for_each_session",
        "the drawing of a call": "test_document_004_the_flow_of_a_call",
        "HarnessAgent.builder(), with and without a store": "test_document_004_switching_the_store_is_one_argument",
        "the warning below it": "test_004_29_",
        "agentA and agentB": "test_document_004_node_b_goes_on_where_node_a_ended",
        "alice-1 and bob-1": "test_document_004_two_users_have_nothing_of_each_other",
        "agent.getAgentState(...)": "test_document_004_reading_a_state_from_outside_and_as_json",
        "agent.interrupt(...)": "test_document_004_interrupting_one_session",
        "Mono.zip and Flux.merge": "test_document_004_concurrent_calls",
        "RuntimeContext.builder()": "test_document_004_data_of_one_call",
    },
}


def names_of_tests() -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("test_*.py"))
    found = (
        node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {name for name in found if name.startswith("test_")}


@pytest.mark.parametrize("document", BLOCKS)
def test_every_block_is_shown(document: str) -> None:
    tests = names_of_tests()
    for block, shown in BLOCKS[document].items():
        assert any(name.startswith(shown) for name in tests), f"{document}, {block}: there is no {shown}"


def test_every_test_of_an_example_is_listed_or_goes_with_one() -> None:
    listed = {name for blocks in BLOCKS.values() for name in blocks.values()}
    more = {"test_document_000_one_agent_for_many_conversations"}
    assert {name for name in names_of_tests() if name.startswith("test_document_")} == (
        {name for name in listed if name.startswith("test_document_")} | more
    )
