"""The commands of `noetic`."""

import io
import sys
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

# Each command imports what it needs, so that the help is there at once.
from noetic_py.cli.plugin_commands import CommandGroup

app: typer.Typer = typer.Typer(
    name="noetic",
    cls=CommandGroup,
    help="Run and draw agent workflows, and look after stored runs.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

memory_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="What memory layers keep: show, export, re-index, erase; and other layers on trial."
)
app.add_typer(memory_app, name="memory")
PluginKind: TypeAlias = Literal[
    "layer",
    "model",
    "token-counter",
    "backend",
    "item-type",
    "step-kind",
    "hook",
    "event-sink",
    "service",
    "transform",
]
plugins_app: typer.Typer = typer.Typer()
app.add_typer(plugins_app, name="plugins")

_FORMS = "The id, the beginning of it, or last."
Target = Annotated[str, typer.Argument(metavar="FILE[:STEP]", help="A Python file, and the variable of its step.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help=_FORMS)]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Such as openai:gpt-5-mini.")]
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|ADDRESS|none",
        help="The database of runs, a file or an address as in checkpoints=. Default: NOETIC_DB or .noetic/runs.db.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
User = Annotated[str | None, typer.Option("--user", metavar="ID", help="The user, for layers of scope user.")]
Thread = Annotated[str | None, typer.Option("--thread", metavar="ID", help="The thread, for layers of scope thread.")]
SessionName = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="The session of the user, in place of --thread.")
]
Wait = Annotated[
    float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="How long the run's process may take to accept it.")
]
JsonValue = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the value.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Trace = Annotated[bool, typer.Option("--traceback", help="Print Python tracebacks of errors.")]


def run_command_line() -> int:
    """Run the command the process was started with, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is not a reason to lose the result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="noetic")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noetic {sys.modules['noetic_py'].__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run and draw agent workflows, and look after stored runs."""


@app.command()
def run(
    target: Target,
    input: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="Text, or JSON of the step's type; @FILE, or - for standard input."),
    ] = None,
    model: Model = None,
    db: Database = None,
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="The run's id.")] = None,
    json: JsonValue = False,
    quiet: Quiet = False,
    trace: Trace = False,
) -> None:
    """Run a step of a file and print its value.

    Exit codes: 0 completed, 1 failed, 2 did not start, 3 aborted or interrupted, 4 out of budget, 5 suspended,
    130 and 143 stopped by a signal.
    """
    from noetic_py.cli.running import RunRequest, ViewOptions, run_request

    raise typer.Exit(run_request(RunRequest(target, input, model, db, run_id), ViewOptions(json, quiet, trace)))


@app.command()
def resume(
    name: RunName,
    flow: Annotated[
        str | None, typer.Option("--flow", metavar="FILE[:STEP]", help="The flow, if its file has moved.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would happen, and run nothing.")] = False,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", metavar="NAME=VALUE", help="A limit such as steps=20 or cost=0.50; repeatable."),
    ] = None,
    on_diverge: Annotated[
        Literal["fail", "adopt", "pin"],
        typer.Option("--on-diverge", help="Where the flow has changed: fail, run the step again, or keep the record."),
    ] = "fail",
    model: Model = None,
    db: Database = None,
    json: JsonValue = False,
    quiet: Quiet = False,
    trace: Trace = False,
) -> None:
    """Go on with a run; what has finished is not run again. Exit codes are those of run."""
    from noetic_py.cli.resuming import ResumeRequest, plan_request, resume_request
    from noetic_py.cli.running import ViewOptions

    request = ResumeRequest(name, flow, model, db, tuple(budget or ()), on_diverge)
    raise typer.Exit((plan_request if dry_run else resume_request)(request, ViewOptions(json, quiet, trace)))


@app.command()
def runs(
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="Only runs with this status.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="List at most this many.")] = 20,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """List the stored runs, the newest first."""
    from noetic_py.cli import stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_runs.listing(db, status, limit, as_json=json), trace=trace))


@app.command()
def submit(
    target: Target,
    input: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="Text, or JSON of the step's type; @FILE, or - for standard input."),
    ] = None,
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="The queue.")] = "default",
    after: Annotated[
        str | None, typer.Option("--after", metavar="SPAN", help="When it may begin, from now: 30s, 15m, 12h, 7d.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="The run with the highest goes first.")] = 0,
    key: Annotated[str | None, typer.Option("--key", help="Whose run it is; keys take turns in a queue.")] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="The run's id.")] = None,
    db: Database = None,
    trace: Trace = False,
) -> None:
    """Store a run for a worker, and print its id; noetic worker carries it out."""
    from noetic_py.cli import working
    from noetic_py.cli.stored_runs import run_async

    request = working.SubmitRequest(target, input, db, queue, after, priority, key, run_id)
    raise typer.Exit(run_async(lambda: working.submit(request), trace=trace))


@app.command()
def worker(
    target: Target,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="A queue; repeatable. Default: default.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, metavar="N", help="How many runs at once.")] = 10,
    lives: Annotated[
        int, typer.Option("--lives", min=1, metavar="N", help="After how many workers that died with a run it fails.")
    ] = 5,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, metavar="N", help="How often a run that fails is tried in all.")
    ] = 1,
    grace: Annotated[
        float, typer.Option("--grace", min=0.1, metavar="SECONDS", help="How long runs may take to end at a signal.")
    ] = 10.0,
    on: Annotated[
        Literal["temporal"] | None,
        typer.Option("--on", help="Carry out the runs of a Temporal server. It needs the package noetic-temporal."),
    ] = None,
    model: Model = None,
    db: Database = None,
    trace: Trace = False,
) -> None:
    """Carry out submitted runs until a signal comes; several workers may share a database.

    The first SIGTERM or Ctrl-C hands over what has not ended within the grace period; any worker goes on with it.
    """
    from noetic_py.cli import working
    from noetic_py.cli.stored_runs import run_async

    request = working.WorkRequest(target, model, db, tuple(queue or ()), concurrency, lives, attempts, grace, on)
    code = run_async(lambda: working.work(request), trace=trace)
    if on is not None:
        working.leave(code)
    raise typer.Exit(code)


@app.command()
def queues(db: Database = None, json: Json = False, trace: Trace = False) -> None:
    """Show how full each queue is: runs that may be claimed, that a worker has, and that wait."""
    from noetic_py.cli import working
    from noetic_py.cli.stored_runs import run_async

    raise typer.Exit(run_async(lambda: working.show_queues(db, as_json=json), trace=trace))


@app.command()
def budgets(
    everything: Annotated[bool, typer.Option("--all", help="Show periods that are over, too.")] = False,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Show what is used of shared budgets in the periods that go on, and which runs have reserved some."""
    from noetic_py.cli import working
    from noetic_py.cli.stored_runs import run_async

    raise typer.Exit(run_async(lambda: working.show_budgets(db, everything=everything, as_json=json), trace=trace))


@app.command()
def schedules(
    target: Target,
    pause: Annotated[str | None, typer.Option("--pause", metavar="NAME", help="Let it begin no runs.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="NAME", help="Let it begin runs again.")] = None,
    trigger: Annotated[str | None, typer.Option("--trigger", metavar="NAME", help="Submit a run of it now.")] = None,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Show when the schedules of a file's harness begin runs; pause, resume or trigger one."""
    from noetic_py.cli import working
    from noetic_py.cli.stored_runs import run_async

    request = working.ScheduleRequest(target, db, pause, resume, trigger, json)
    raise typer.Exit(run_async(lambda: working.show_schedules(request), trace=trace))


@app.command()
def show(
    name: RunName,
    items: Annotated[bool, typer.Option("--items", help="The conversation.")] = False,
    views: Annotated[bool, typer.Option("--views", help="What a model was shown in each request.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all steps and failures.")] = False,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Show a run: its status, its steps, its usage and its failures."""
    from noetic_py.cli import stored_runs

    def work() -> stored_runs.Work:
        if views:
            return stored_runs.show_views(db, name, as_json=json)
        return stored_runs.show(db, name, items=items, everything=everything, as_json=json)

    raise typer.Exit(stored_runs.run_async(work, trace=trace))


@app.command()
def tail(name: RunName, db: Database = None, json: Json = False, trace: Trace = False) -> None:
    """Print a run's records, and those that come, until it ends."""
    from noetic_py.cli import stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_runs.tail(db, name, as_json=json), trace=trace))


@app.command()
def fork(
    name: RunName,
    at: Annotated[
        int | None, typer.Option("--at", metavar="N", help="The last record to copy. Default: all records.")
    ] = None,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Copy a run up to a record, and print the copy's id for resume."""
    from noetic_py.cli import stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_runs.fork(db, name, at, as_json=json), trace=trace))


@app.command()
def answer(
    name: RunName,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST", help="The request's key, a prefix of it, or the call's id. Needed if there are several."
        ),
    ] = None,
    approve: Annotated[bool, typer.Option("--approve", help="Approve the tool call.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject the request.")] = False,
    value: Annotated[str | None, typer.Option("--value", metavar="JSON", help="The answer, or the result.")] = None,
    arguments: Annotated[
        str | None,
        typer.Option("--arguments", metavar="JSON", help="With --approve: the arguments to call the tool with."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it is rejected.")] = "",
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name of the person who answers.")] = None,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Answer the requests of a suspended run; at a terminal without options, ask for each."""
    from noetic_py.cli import answering, stored_runs

    said = answering.CommandLineDecision(approve, reject, value, reason, by, arguments)
    raise typer.Exit(
        stored_runs.run_async(lambda: answering.answer(db, name, request, said, as_json=json), trace=trace)
    )


@app.command()
def complete(
    name: RunName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or else text.")],
    wait: Wait = 10.0,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """End a run with a value, whether it runs in any process or waits."""
    from noetic_py.cli import answering, stored_runs

    raise typer.Exit(
        stored_runs.run_async(lambda: answering.complete(db, name, value, wait, as_json=json), trace=trace)
    )


@app.command()
def wrap_up(
    name: RunName,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "wrapped up",
    wait: Wait = 10.0,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Have a run finish with what it has: its budget's wrap-up step, or the last value of its loop."""
    from noetic_py.cli import answering, stored_runs

    raise typer.Exit(
        stored_runs.run_async(lambda: answering.wrap_up(db, name, reason, wait, as_json=json), trace=trace)
    )


@app.command()
def abort(
    name: RunName,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "aborted",
    wait: Wait = 10.0,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """End a run for good, without a value, whether it runs in any process, waits or is queued."""
    from noetic_py.cli import answering, stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: answering.abort(db, name, reason, wait, as_json=json), trace=trace))


@app.command()
def verify(
    name: RunName,
    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor", metavar="N:DIGEST", help="The anchor of an earlier report; the run must still contain it."
        ),
    ] = None,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Verify the signatures of a run. Exit codes: 0 valid, 1 not valid."""
    from noetic_py.cli import stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_runs.verify(db, name, anchor, as_json=json), trace=trace))


@app.command()
def diff(
    left: RunName,
    right: Annotated[str, typer.Argument(metavar="RUN", help=_FORMS)],
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Show the first step where two runs differ. Exit codes: 0 equal, 1 different, 2 run not found."""
    from noetic_py.cli import stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_runs.diff(db, (left, right), as_json=json), trace=trace))


@memory_app.command("show")
def memory_show(
    target: Target,
    user: User = None,
    thread: Thread = None,
    session: SessionName = None,
    db: Database = None,
    trace: Trace = False,
) -> None:
    """Print what the memory layers of a file's harness keep for a user or a thread."""
    from noetic_py.cli import stored_memory, stored_runs

    wanted = stored_memory.MemoryRequest(target, user, thread, session, db)
    raise typer.Exit(stored_runs.run_async(lambda: stored_memory.show(wanted), trace=trace))


@memory_app.command("export")
def memory_export(
    target: Target,
    user: User = None,
    thread: Thread = None,
    session: SessionName = None,
    db: Database = None,
    trace: Trace = False,
) -> None:
    """Print all that the memory layers of a file's harness keep for a user or a thread, as JSON."""
    from noetic_py.cli import stored_memory, stored_runs

    wanted = stored_memory.MemoryRequest(target, user, thread, session, db)
    raise typer.Exit(stored_runs.run_async(lambda: stored_memory.export(wanted), trace=trace))


@memory_app.command("reindex")
def memory_reindex(target: Target, db: Database = None, trace: Trace = False) -> None:
    """Give all stored passages vectors of the embedder that the file's harness has now; may be repeated."""
    from noetic_py.cli import stored_memory, stored_runs

    raise typer.Exit(stored_runs.run_async(lambda: stored_memory.reindex(target, db), trace=trace))


@memory_app.command("trial")
def memory_trial(
    runs: Annotated[list[str], typer.Argument(metavar="RUNS...", help=_FORMS)],
    memory: Annotated[str, typer.Option("--with", metavar="FILE[:MEMORY]", help="The memory bundle on trial.")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="FILE[:MEMORY]", help="Another bundle to compare it with.")
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option("--flow", metavar="FILE[:STEP]", help="The flow of the runs: instructions and tools of requests."),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            "--evidence",
            metavar="FILE[:FUNCTION]",
            help="What each request has to show; FUNCTION is evidence if unnamed.",
        ),
    ] = None,
    model: Model = None,
    everything: Annotated[bool, typer.Option("--all", help="Print each request.")] = False,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Replay stored runs with another memory bundle, without asking a model: what would have been shown."""
    from noetic_py.cli import memory_trials, stored_runs

    wanted = memory_trials.TrialCommand(runs, memory, against, flow, evidence, model, db)
    raise typer.Exit(
        stored_runs.run_async(lambda: memory_trials.trial(wanted, everything=everything, as_json=json), trace=trace)
    )


@memory_app.command("erase")
def memory_erase(
    target: Target,
    user: Annotated[str, typer.Option("--user", metavar="ID", help="The user.")],
    thread: Annotated[
        list[str] | None,
        typer.Option("--thread", metavar="ID", help="A thread of theirs whose runs were pruned; may be repeated."),
    ] = None,
    db: Database = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Erase all that is stored about a user: runs, sessions, messages, artifacts and memory."""
    from noetic_py.cli import stored_memory, stored_runs

    wanted = stored_memory.EraseRequest(target, user, thread or [], db)
    raise typer.Exit(stored_runs.run_async(lambda: stored_memory.erase(wanted, sure=yes, as_json=json), trace=trace))


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Only runs older than this: 30d, 12h.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, metavar="N", help="Keep this many of the newest runs.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Only runs with this status; repeatable. Default: completed."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: Database = None,
    json: Json = False,
    trace: Trace = False,
) -> None:
    """Forget old runs. Those that a process has are left.

    With --older-than, what was used of shared budgets in periods that ended before is forgotten too.
    """
    from noetic_py.cli import stored_runs

    def work() -> stored_runs.Work:
        return stored_runs.prune(db, older_than, keep, tuple(status or ()), sure=yes, as_json=json)

    raise typer.Exit(stored_runs.run_async(work, trace=trace))


@plugins_app.callback(invoke_without_command=True)
def plugins(context: typer.Context, json: Json = False, trace: Trace = False) -> None:
    """List the plugins that are loaded, with their packages and what they register. Exit code 1 if one is broken."""
    if context.invoked_subcommand is not None:
        return
    from noetic_py.cli import stored_runs
    from noetic_py.cli.report import FAILED, print_error, write_out
    from noetic_py.cli.show import plugins_json, plugins_text
    from noetic_py.plugins import load_working_plugins

    def work() -> int:
        found, problems = load_working_plugins()
        write_out((plugins_json if json else plugins_text)(found.loaded))
        for problem in problems:
            print_error(problem, None, trace=trace)
        return FAILED if problems else 0

    raise typer.Exit(stored_runs.guarded(work, trace=trace))


@plugins_app.command("new")
def plugins_new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The package's folder; it must not exist yet.")],
    kind: Annotated[PluginKind, typer.Option(help="What the plugin registers.")] = "layer",
    trace: Trace = False,
) -> None:
    """Make a plugin: a package with what it registers, the contract as its tests, a README and a CI file."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.starting import new_plugin

    raise typer.Exit(stored_runs.guarded(lambda: new_plugin(folder, kind), trace=trace))


@app.command()
def graph(
    target: Target,
    svg: Annotated[bool, typer.Option("--svg", help="Print a picture instead of Mermaid's text.")] = False,
    trace: Trace = False,
) -> None:
    """Print a step's tree, with its tools and conditions, as a Mermaid flowchart or as SVG."""
    from noetic_py.cli.loading import load_flow
    from noetic_py.cli.output_capture import captured_output
    from noetic_py.cli.report import USAGE, print_error, write_out
    from noetic_py.errors import NoeticError
    from noetic_py.harness import Harness

    try:
        with captured_output():
            # Drawing needs no plugin, and a broken one must not stand in the way.
            drawn = Harness(plugins=()).graph(load_flow(target).step, "svg" if svg else "mermaid")
    except NoeticError as error:
        print_error(error, None, trace=trace)
        raise typer.Exit(USAGE) from None
    write_out(drawn)


@app.command()
def mcp(
    target: Target,
    model: Model = None,
    db: Database = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Serve http://127.0.0.1:PORT/mcp, not standard input and output."
        ),
    ] = None,
    trace: Trace = False,
) -> None:
    """Serve a file's flow, and the flows of its harness, to MCP clients. It needs the package noetic-mcp."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.serving import serve

    raise typer.Exit(stored_runs.guarded(lambda: serve(target, model, db, port), trace=trace))


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder for the demo's flow and runs; empty or new.")
    ] = Path("noetic-demo"),
    trace: Trace = False,
) -> None:
    """Show a run that is killed, resumed and approved, in two minutes and without a key."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.demo import demo as run_demo

    raise typer.Exit(stored_runs.guarded(lambda: run_demo(folder, ask=sys.stdin.isatty()), trace=trace))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The project's folder; it must not exist yet.")],
    trace: Trace = False,
) -> None:
    """Make a project: a flow, its test, a README and a CI file."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.starting import new_project

    raise typer.Exit(stored_runs.guarded(lambda: new_project(folder), trace=trace))


@app.command()
def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The example to write; without it, list them.")
    ] = None,
    trace: Trace = False,
) -> None:
    """List the examples, or write one into the current folder."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.starting import example, list_examples

    raise typer.Exit(
        stored_runs.guarded(lambda: list_examples() if name is None else example(name, Path()), trace=trace)
    )


@app.command()
def doctor(db: Database = None, trace: Trace = False) -> None:
    """Say what of the installation works, and the remedy for what does not. Exit codes: 0 it works, 1 it does not."""
    from noetic_py.cli import stored_runs
    from noetic_py.cli.doctor import doctor as examine

    raise typer.Exit(stored_runs.run_async(lambda: examine(db), trace=trace))
