"""Loading, running, resuming and scoring an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pandacore import errors
from pandacore.evals import Progress, evaluate, load_rows
from pandacore.models.types import ChatRequest
from pandacore.testing import ScriptedModel

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "hotpotqa_distractor.jsonl"


def item(number: int, **changes: Any) -> dict[str, Any]:
    """A question about made-up paragraphs whose answer differs from item to item."""
    return {
        "id": f"q{number}",
        "question": f"Where was the architect who designed the Red Mill {number} born?",
        "answer": f"Ribe {number}",
        "type": "bridge" if number % 2 else "comparison",
        "supporting_facts": [["Ann Lee", 1], [f"Red Mill {number}", 1]],
        "context": [
            [
                f"Red Mill {number}",
                [f"Red Mill {number} is a theatre in Oakham.", " It was designed by Ann Lee."],
            ],
            ["Ann Lee", ["Ann Lee was a Danish architect.", f" She was born in Ribe {number}."]],
            ["Oakham", ["Oakham is a town on the river Wend."]],
        ],
        **changes,
    }


def write(path: Path, items: list[Any]) -> Path:
    path.write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", [item(i) for i in range(1, 5)])


def test_rows_are_read_in_order_up_to_a_limit(data: Path) -> None:
    assert [row.id for row in load_rows(data)] == ["q1", "q2", "q3", "q4"]
    first = load_rows(data, limit=1)[0]
    assert first.supporting_facts == (("Ann Lee", 1), ("Red Mill 1", 1))
    assert first.documents()[1].sentences == ("Ann Lee was a Danish architect.", "She was born in Ribe 1.")


def test_equal_titles_get_distinct_documents(tmp_path: Path) -> None:
    twice = item(1, context=[["A", ["One."]], ["A", ["Two."]]])
    [row] = load_rows(write(tmp_path / "d.jsonl", [twice]))
    assert [(d.id, d.title) for d in row.documents()] == [("A", "A"), ("A #2", "A")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no questions"),
        ("[]\n", "not a HotPotQA row"),
        ("{oops\n", "not a HotPotQA row"),
        (json.dumps({"id": "x"}) + "\n", "not a HotPotQA row"),
        (json.dumps(item(1, context=[["A"]])) + "\n", "not a HotPotQA row"),
        (2 * (json.dumps(item(1)) + "\n"), "occurs twice"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(errors.ConfigError, match=message) as caught:
        load_rows(path)
    assert str(path) in str(caught.value.where)


def test_a_missing_file_and_a_bad_limit_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        load_rows(tmp_path / "none.jsonl")
    with pytest.raises(errors.ConfigError, match="1 or more"):
        load_rows(data, limit=0)


async def test_each_question_is_a_run_with_scores_and_costs(data: Path) -> None:
    seen: list[Progress] = []
    report = await evaluate(load_rows(data), progress=seen.append)
    assert (report.rows, report.completed, report.resumed) == (4, 4, 0)
    assert report.metrics["f1"] == report.metrics["em"] == 1.0
    assert report.metrics["sp_f1"] > 0.6
    assert set(report.by_type) == {"bridge", "comparison"}
    assert [p.done for p in seen] == [1, 2, 3, 4]
    assert seen[-1].means == report.metrics
    assert report.costs["total_tokens"] == pytest.approx(
        report.costs["prompt_tokens"] + report.costs["completion_tokens"]
    )
    assert report.costs["wall_s_total"] == pytest.approx(sum(r["wall_s"] for r in report.records))
    json.dumps(report.to_dict())


async def test_a_resumed_evaluation_runs_only_what_is_missing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await evaluate(load_rows(data), limit=2, resume_path=out)
    # A crash in the middle of a line.
    with out.open("a", encoding="utf-8") as file:
        file.write('{"kind": "question", "id": "q3", "f1":')
    ran: list[str] = []
    report = await evaluate(load_rows(data), resume_path=out, progress=lambda p: ran.append(p.record["id"]))
    assert ran == ["q3", "q4"]
    assert (report.completed, report.resumed, report.metrics["f1"]) == (4, 2, 1.0)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == ["settings"] + 4 * ["question"]


async def test_other_settings_or_another_file_are_not_mixed_in(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await evaluate(load_rows(data), limit=1, resume_path=out)
    with pytest.raises(errors.ConfigError, match=r"other settings .*planner"):
        await evaluate(load_rows(data), limit=1, resume_path=out, planner="rules")
    with pytest.raises(errors.ConfigError, match="not a record"):
        await evaluate(load_rows(data), limit=1, resume_path=data)


def _answers(request: ChatRequest) -> Any:
    match request.metadata["task"]:
        case "answer" if "Mill 1 " in request.messages[-1].content:
            return errors.ModelNotFound("gone")
        case _:
            # Half of it, and twice.
            return {"answer": " Ribe 2 ", "evidence": ["2.1", "2.1"]}


async def test_a_generative_model_gets_the_rules_plan_and_a_failed_run_scores_zero(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    async with ScriptedModel(_answers) as model:
        report = await evaluate(load_rows(data), model=model.client, limit=2, resume_path=out)
        tasks = [request.metadata["task"] for request in model.requests]
    assert tasks == ["answer", "answer"]  # no call to plan, none only to read
    assert (report.rows, report.completed) == (2, 1)
    assert report.metrics["f1"] == 0.5
    failed, done = report.records
    assert failed["status"] == "failed"
    assert "gone" in failed["failures"][0]
    assert done["answer"] == "Ribe 2"
    assert ["Ann Lee", 1] in done["evidence"]
    assert {title for title, _ in done["evidence"]} == {"Ann Lee", "Red Mill 2"}
    # What failed is tried again, what is done is not.
    async with ScriptedModel(_answers) as model:
        settings = json.loads(out.read_text(encoding="utf-8").splitlines()[0])
        out.write_text(out.read_text(encoding="utf-8").replace(settings["model"], repr(model.client)))
        again = await evaluate(load_rows(data), model=model.client, limit=2, resume_path=out)
        assert len(model.requests) == 1
    assert again.resumed == 1


@pytest.mark.parametrize("options", [{"planner": "best"}, {"concurrency": 0}])
async def test_bad_arguments_are_refused(data: Path, options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError):
        await evaluate(load_rows(data), **options)


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE.exists(), reason="the HotPotQA sample is not beside the repository")
async def test_real_questions_score_above_the_floor() -> None:
    # The rows that were used for development; those that are reported stay out of the tests.
    report = await evaluate(load_rows(SAMPLE)[100:140])
    assert report.completed == 40
    assert report.metrics["f1"] >= 0.40
    assert report.metrics["sp_f1"] >= 0.60
