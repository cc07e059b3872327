"""``pandacore demo``: the built-in questions, answered by a team over the built-in passages."""

from __future__ import annotations

import typer

from pandacore.cli.output import json_line, say
from pandacore.config import load
from pandacore.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    *,
    question: str = typer.Option(
        "1", "--question", "-q", metavar="N|TEXT", help="Number of a built-in question, or one of your own."
    ),
    every: bool = typer.Option(False, "--all", help="All built-in questions, and how many came out right."),
    listed: bool = typer.Option(False, "--list", help="Print the built-in questions."),
    model: str | None = typer.Option(
        None, "--model", metavar="SPEC", help="extractive, llama:NAME, openai:MODEL or grpc://host:port."
    ),
    hosts: int = typer.Option(
        3, "--hosts", min=0, max=4, help="Processes that the agents run in; 0: all in this one."
    ),
    pattern: str = typer.Option("star", "--pattern", help="How the team works together."),
    planner: str = typer.Option("auto", "--planner", help="Who plans: auto, model or rules."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per question."),
) -> None:
    """Answer the built-in questions with a team of agents.

    The passages are about an invented country, so no model knows the answers by heart. Needs no key and no
    server: the extractive model answers by quoting the passages. The agents run in several processes, which
    find each other by gossip.
    """
    from pandacore.cli.questions import Asked, Ways, ask_all
    from pandacore.cli.runs import blocking
    from pandacore.demo import documents, questions

    known = questions()
    if listed:
        for number, item in enumerate(known, 1):
            if as_json:
                json_line({"number": number, "question": item.question})
            else:
                say(f"{number:3}  {item.question}")
        return
    if every:
        asked = [Asked(item.question, item.answer) for item in known]
    elif question.strip().lstrip("-").isdigit():
        number = int(question)
        if not 1 <= number <= len(known):
            raise ConfigError(
                f"there is no question {number}", where="--question", hint=f"choose 1 to {len(known)}"
            )
        asked = [Asked(known[number - 1].question, known[number - 1].answer)]
    else:
        asked = [Asked(question)]
    ways = Ways(pattern=pattern, hosts=hosts, model=model, planner=planner, as_json=as_json, brief=every)
    raise typer.Exit(blocking(ask_all(asked, documents(), load(), ways)))
