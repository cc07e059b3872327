"""The agent's queue against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore.errors import Overloaded
from pandacore.team.queue import WorkQueue


class Item:
    def __init__(self, name: str) -> None:
        self.name = name


def test_larger_priority_first_then_first_come() -> None:
    queue: WorkQueue[Item] = WorkQueue(concurrency=1, limit=10)
    items = {name: Item(name) for name in "abcd"}
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5)]:
        queue.offer(items[name], run_id="r", priority=priority)
    served = []
    while (item := queue.next()) is not None:
        served.append(item.name)
        queue.done()
    assert served == ["b", "d", "a", "c"]


def test_a_full_queue_refuses_but_a_reserved_place_is_kept() -> None:
    queue: WorkQueue[Item] = WorkQueue(concurrency=1, limit=1)
    assert queue.reserve("mine")
    queue.offer(Item("x"), run_id="other")
    assert queue.full
    assert not queue.reserve("third")
    with pytest.raises(Overloaded):
        queue.offer(Item("y"), run_id="other")
    queue.offer(Item("z"), run_id="mine")
    assert queue.load == 2
    assert queue.reserved == 0


@given(
    st.lists(st.tuples(st.sampled_from("oondprl"), st.integers(-2, 2)), max_size=60),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_it_never_passes_its_bounds_and_serves_in_order(
    steps: list[tuple[str, int]], concurrency: int, limit: int
) -> None:
    queue: WorkQueue[Item] = WorkQueue(concurrency=concurrency, limit=limit)
    waiting: list[tuple[int, int, Item]] = []
    running = reserved = count = 0
    for action, number in steps:
        full = running + len(waiting) + reserved >= concurrency + limit
        match action:
            case "o":
                item = Item(str(count))
                if full:
                    with pytest.raises(Overloaded):
                        queue.offer(item, run_id="none", priority=number)
                else:
                    assert queue.offer(item, run_id="none", priority=number) == len(waiting)
                    waiting.append((-number, count, item))
                    count += 1
            case "n":
                got = queue.next()
                if running < concurrency and waiting:
                    best = min(waiting, key=lambda w: w[:2])
                    assert got is best[2]
                    waiting.remove(best)
                    running += 1
                else:
                    assert got is None
            case "d" if running:
                queue.done()
                running -= 1
            case "p" if waiting:
                victim = waiting.pop(number % len(waiting))
                assert queue.discard(victim[2])
                assert not queue.discard(victim[2])
            case "r":
                assert queue.reserve("run") == (not full)
                reserved += not full
            case "l":
                assert queue.release("run") == (reserved > 0)
                reserved -= reserved > 0
        assert (queue.running, queue.queued, queue.reserved) == (running, len(waiting), reserved)
        assert queue.load <= concurrency + limit
