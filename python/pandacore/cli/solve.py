"""``pandacore solve``: a question about the user's own files."""

from __future__ import annotations

from pathlib import Path

import typer

from pandacore.config import load

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def solve(
    question: str = typer.Argument(..., help="What you want to know."),
    *,
    docs: Path = typer.Option(..., "--docs", metavar="DIR|FILE", help="Your .txt, .md or .jsonl files."),
    pattern: str = typer.Option("star", "--pattern", help="How the team works together."),
    model: str | None = typer.Option(
        None, "--model", metavar="SPEC", help="extractive, llama:NAME, openai:MODEL or grpc://host:port."
    ),
    planner: str = typer.Option("auto", "--planner", help="Who plans: auto, model or rules."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Answer a question from your own documents.

    Text files become passages by their headings and paragraphs. A line of JSONL is an object with "text" (or
    "sentences") and optionally "title" and "id".
    """
    from pandacore.cli.documents import load_documents, within_request
    from pandacore.cli.output import note
    from pandacore.cli.questions import Asked, Ways, ask_all
    from pandacore.cli.runs import blocking

    settings = load()
    ways = Ways(pattern=pattern, model=model, planner=planner, as_json=as_json)
    documents = load_documents(docs)
    chosen = within_request(documents, question)
    if len(chosen) < len(documents):
        note(f"{len(chosen)} of {len(documents)} passages go to the team, chosen by the question's words")
    raise typer.Exit(blocking(ask_all([Asked(question)], chosen, settings, ways)))
