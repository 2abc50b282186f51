"""What is measured: modules, and the narrow tests that have to notice a change of each."""

from __future__ import annotations

SIGNING = ("plugins/noetic-signing/tests",)
CODEC = (
    "tests/test_codec.py",
    "tests/test_codec_text.py",
    "tests/test_checkpoints_stored.py",
    "tests/test_items.py",
    "tests/requirements/test_002_items.py",
    "tests/requirements/test_000_stored.py",
)
RESUMED = (
    "tests/test_resume.py",
    "tests/test_resumed_counts.py",
    "tests/test_replay_diverged.py",
    "tests/test_cuts.py",
    "tests/test_suspension.py",
    "tests/test_detached_resumed.py",
    "tests/test_engine_once.py",
    "tests/test_engine_migrate.py",
    "tests/test_steps_loop.py",
    "tests/test_steps_handoff.py",
    "tests/test_tools_parallel.py",
    "tests/properties/test_durable_regressions.py",
    "tests/test_engine_replay.py",
)

OPENED = ("tests/test_checkpoints_sqlite_store.py", "tests/test_checkpoints_sqlite.py")
LEDGER = (
    "tests/test_engine_writer.py",
    "tests/test_engine_ledger.py",
    "tests/test_engine_store.py",
    "tests/test_engine_leases.py",
    "tests/test_engine_takeover.py",
    "tests/test_progress.py",
    "tests/test_large.py",
    "tests/test_queued_children.py",
    "tests/test_queue_limits.py",
    "tests/test_wrap_ups.py",
    *RESUMED,
)

TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "budget": (
        "noetic_py.core.budget",
        (
            "tests/test_budget.py",
            "tests/test_usage.py",
            "tests/test_queue_limits.py",
            "tests/properties/test_budget_exact.py",
        ),
    ),
    "log": (
        "noetic_py.core.log",
        (
            "tests/test_log.py",
            "tests/requirements/test_001_log.py",
            "tests/requirements/test_000_conversation.py",
            "tests/test_validation.py",
            "tests/security/test_forged.py",
            "tests/requirements/test_001_derived.py",
            "tests/requirements/test_004_data.py",
        ),
    ),
    "wire": (
        "noetic_py.core.codec.wire",
        (*CODEC, "tests/test_testing_item_types.py", "tests/test_bad_input_sessions.py"),
    ),
    "structure": ("noetic_py.core.codec.structure", CODEC),
    "stored": ("noetic_py.core.codec.stored", CODEC),
    "permissions": (
        "noetic_py.tools.permissions",
        ("tests/test_permissions.py", "tests/test_permissions_received.py"),
    ),
    "lock": ("noetic_py.sessions.queue", ("tests/test_sessions_lock.py", "tests/test_telemetry.py")),
    "queue": (
        "noetic_py.sessions.queue",
        (
            "tests/test_sessions_messages.py",
            "tests/test_sessions_queue.py",
            "tests/test_sessions.py",
            "tests/test_sessions_turn.py",
        ),
    ),
    "projector": (
        "noetic_py.memory.projector",
        (
            "tests/test_memory_view.py",
            "tests/test_memory_anchor.py",
            "tests/test_memory_allocate.py",
            "tests/test_memory_conversation.py",
            "tests/properties/test_view.py",
            "tests/properties/test_view_accounts.py",
        ),
    ),
    "sqlite": (
        "noetic_py.checkpoints.sqlite.store",
        ("tests/test_checkpoints_sqlite_store.py", "tests/test_checkpoints_sqlite.py::TestWriteAheadLog"),
    ),
    "schema": ("noetic_py.checkpoints.sqlite.schema", OPENED),
    "writer": (
        "noetic_py.engine.journaling.writer",
        (
            "tests/test_engine_writer.py",
            "tests/test_engine_store.py",
            "tests/test_engine_leases.py",
            "tests/test_engine_takeover.py",
            "tests/test_shared_budgets.py",
            "tests/test_inbox.py",
            "tests/test_workers.py",
            "tests/test_sessions_turn.py",
            "tests/test_summaries.py",
            "tests/test_queued_children.py",
        ),
    ),
    "summaries": ("noetic_py.engine.journaling.summaries", ("tests/test_summaries.py", "tests/test_engine_writer.py")),
    "ledger": (
        "noetic_py.engine.journaling.ledger",
        ("tests/test_shutdown.py::test_what_a_model_had_said_is_saved", *LEDGER),
    ),
    "fold": (
        "noetic_py.engine.journaling.fold",
        (
            "tests/test_engine_fold.py",
            "tests/test_summaries.py",
            "tests/test_wrap_ups.py",
            "tests/test_histories.py::test_every_run_goes_on",
            "tests/test_memory_storage.py",
            "tests/properties/test_cut_short.py::test_cut_short_and_gone_on_with_after_an_upgrade_of_a_layer",
            *RESUMED,
        ),
    ),
    "replay": (
        "noetic_py.engine.journaling.replay",
        (
            "tests/test_engine_leases.py",
            "tests/test_engine_takeover.py",
            "tests/test_steps_handoff_models.py",
            "tests/test_memory_state.py",
            "tests/test_histories.py::test_every_run_goes_on",
            *RESUMED,
        ),
    ),
    "signing": ("noetic_py.journal.signing", ("tests/test_checkpoints_signed.py", *SIGNING)),
    "signatures": ("noetic_signing.signing", SIGNING),
    "keys": ("noetic_signing.keys", SIGNING),
}

PARTS = {"lock": ("_Place", "SessionLock")}
"""The classes that a target is. Other targets of the same module are the rest of it."""
