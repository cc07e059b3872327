"""Entry point of ``pandacore``: commands are imported only when they are called.

``pandacore --help`` imports typer and nothing of pandacore but its errors and settings; the names and
one-line summaries below are all it needs. A test holds each summary against the command's own help.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup

from pandacore.cli.output import Exit, fail, prepare_streams, report, say, switches
from pandacore.errors import ConfigError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("pandacore.cli.demo", "Answer the built-in questions with a team of agents."),
    "solve": ("pandacore.cli.solve", "Answer a question from your own documents."),
    "up": ("pandacore.cli.hosts.up", "Run a host with agents until Ctrl-C."),
    "ticket": ("pandacore.cli.hosts.ticket", "Let hosts into a closed collective."),
    "agents": ("pandacore.cli.hosts.agents", "List the agents of a collective."),
    "members": ("pandacore.cli.hosts.members", "List the hosts of a collective."),
    "leave": ("pandacore.cli.hosts.leave", "Let a host of yours say goodbye and end."),
    "eval": ("pandacore.cli.evaluate", "Score a collective on a dataset."),
    "runs": ("pandacore.cli.log.runs", "List the runs of a journal."),
    "show": ("pandacore.cli.log.show", "Show what a run did, record by record."),
    "answer": ("pandacore.cli.log.answer", "Answer what an agent of a run asked."),
    "resume": ("pandacore.cli.log.resume", "Take up a run that a crash left open."),
    "replay": ("pandacore.cli.log.replay", "Rebuild a run from its log alone, and compare."),
    "bench": ("pandacore.cli.bench", "Measure speed and size, beside peers."),
    "experiment": ("pandacore.cli.experiment", "Run a seeded study."),
    "model": ("pandacore.cli.model", "Serve a model over gRPC, or manage local weights."),
    "config": ("pandacore.cli.config", "Show the settings and where they come from."),
    "doctor": ("pandacore.cli.doctor", "Check this installation, line by line."),
    "version": ("pandacore.cli.version", "Print the versions in use."),
}

# UsageError and ClickException, whether typer carries its own click or imports it.
_CLICK_ERRORS: Final[tuple[type[Any], ...]] = typer.BadParameter.__mro__[1:3]


class _LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], COMMANDS, n=1)
            raise ConfigError(
                f"there is no command {args[0]!r}",
                hint=f"did you mean {near[0]}?" if near else "pandacore --help lists them",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = typer.Typer(
    name="pandacore",
    cls=_LazyGroup,
    # rich's help costs more than all of our own imports together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from pandacore.cli.version import one_line

        typer.echo(one_line())
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    no_color: bool = typer.Option(False, "--no-color", help="No colour; NO_COLOR does the same."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Run collectives of LLM agents.

    Exit codes: 0 ok, 1 run failed, 2 usage, 3 cannot reach, 130 interrupted.
    """
    switches.no_color = no_color
    switches.debug = debug


def _hoisted(arguments: Sequence[str]) -> list[str]:
    """Move the options of the whole command to the front, so that they are taken at any place."""
    front: list[str] = []
    rest: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            rest += arguments[i:]
            break
        (front if argument in {"--no-color", "--debug"} else rest).append(argument)
    return front + (rest or ["--help"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with one of the documented codes."""
    prepare_streams()
    switches.debug = switches.no_color = False
    code: int
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would flush once more at exit and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.FAILED
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        result = app(args=_hoisted(arguments), prog_name="pandacore", standalone_mode=False)
    except _CLICK_ERRORS as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command shows its help
            say(error.format_message())
            return Exit.OK
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "pandacore"
        fail(error.format_message(), f"{path} --help")
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        return report(error)
    code = result if isinstance(result, int) else Exit.OK
    if code == Exit.INTERRUPTED:
        fail("interrupted")
    return code


if __name__ == "__main__":
    main()
