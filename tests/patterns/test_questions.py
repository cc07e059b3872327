"""Agents that ask: by hand, and in every pattern under loss, crashes and suspicions in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pandacore import errors
from pandacore.patterns import Answered, Asked, Checkpoint, Execute, Finish, StarHub, Start
from pandacore.plan import Plan, Subtask
from pandacore.task import Question
from pandacore.testing import SimNetwork, explore

TWO = Plan([Subtask("a", "c", "a"), Subtask("b", "c", "b", ["a"])])
OK = {"id": "ok", "text": "go on?", "schema": None}
WHY = {"id": "why", "text": "why?", "schema": None}


def only(actions: list[Any], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def hub(**options: Any) -> StarHub:
    return StarHub("r", "hub", TWO, {"c": ["x", "y"]}, **options)


def test_a_subtask_goes_on_once_all_its_questions_are_answered_in_any_order() -> None:
    machine = hub()
    [first] = only(machine.handle(Start()), Execute)
    assert first.agent == "x"
    assert only(machine.handle(Asked("a", 1, [OK, WHY], {"n": 1})), Execute) == []
    assert [q["id"] for q in machine.questions] == ["a:ok", "a:why"]
    assert machine.waits
    assert only(machine.handle(Answered("a:why", "so")), Execute) == []
    assert not machine.handle(Answered("a:why", "again"))
    assert not machine.handle(Answered("b:ok", True)), "nobody asked this"
    [again] = only(machine.handle(Answered("a:ok", True)), Execute)
    assert (again.attempt, again.agent) == (2, "x"), "who asked goes on"
    assert again.inputs["_answers"] == {"values": {"ok": True, "why": "so"}, "state": {"n": 1}}
    assert not machine.questions


def test_questions_and_answers_survive_in_the_checkpoints() -> None:
    machine = hub()
    machine.handle(Start())
    actions = machine.handle(Asked("a", 1, [OK], "here"))
    assert isinstance(actions[0], Checkpoint), "nobody is asked before it is written down"
    again = hub()
    again.restore(machine.snapshot())
    assert only(again.handle(Start()), Execute) == [], "it waits for its answer, not for another attempt"
    assert [q["id"] for q in again.questions] == ["a:ok"]
    [execute] = only(again.handle(Answered("a:ok", 1)), Execute)
    assert execute.inputs["_answers"] == {"values": {"ok": 1}, "state": "here"}


def test_an_agent_that_asks_what_it_was_told_is_in_a_loop() -> None:
    machine = hub()
    machine.handle(Start())
    machine.handle(Asked("a", 1, [OK]))
    machine.handle(Answered("a:ok", 1))
    [finish] = only(machine.handle(Asked("a", 2, [OK])), Finish)
    loop = finish.failed["a"]
    assert isinstance(loop, errors.LoopDetected)
    assert loop.cycle == ("a asks ok", "a asks ok")


@pytest.mark.parametrize(("pattern", "entry"), [("star", "hub"), ("chain", "root"), ("mesh", "root")])
def test_every_run_with_questions_ends_and_every_agent_gets_its_own_answers(
    worlds: dict[str, Any], pattern: str, entry: str
) -> None:
    world = worlds[pattern]()
    asked: set[str] = set()

    def build(net: SimNetwork) -> None:
        world.build(net)
        watch, agents = net.watch, {n: net._nodes[n].agent for n in net.names}
        told: set[str] = set()

        def work(execute: Execute) -> Any:
            name = execute.subtask_id
            again = execute.inputs.get("_answers", {"values": {}, "state": None})
            values = again["values"]
            if name in ("b", "c", "y") and set(values) != {"ok", "name"}:
                asked.add(name)
                return errors.InputRequired(Question(f"{name}?", "ok"), Question("who?", "name"), state=name)
            if values:
                assert values == {"ok": f"{name}:ok", "name": f"{name}:name"}, "an answer went astray"
                assert again["state"] == name
            inputs = {k: v for k, v in execute.inputs.items() if k != "_answers"}
            agent = next(a for a in agents.values() if a is not None)
            return agent(replace(execute, inputs=inputs))

        def answering(network: SimNetwork, name: str, event: Any, actions: list[Any]) -> None:
            assert watch is not None
            watch(network, name, event, actions)
            if name == entry:
                for n, question in enumerate(reversed(network.machine(entry).questions)):
                    if question["id"] not in told or network.incarnation(entry) > 1:
                        told.add(question["id"])
                        late = network.now + 0.2 + 0.1 * n
                        network.tell(entry, Answered(question["id"], question["id"]), at_s=late)

        net.agents(work)
        net.watch = answering
        net.chaos(net.names, crashes=2, suspicions=1, restart=1.0)

    total = explore(build, world.check, seeds=range(25), loss=0.08, duplicate=0.05)
    assert asked >= {"b", "c"} or pattern == "mesh"
    assert total["crash"] > 25
    assert total["note:answered"] > 40
