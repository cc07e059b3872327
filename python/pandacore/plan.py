"""Plans: a directed acyclic graph of subtasks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pandacore.errors import InvalidPlan
from pandacore.names import capability_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["MAX_SUBTASKS", "Plan", "Subtask"]

MAX_SUBTASKS: Final = 1_000_000
"""Most subtasks of one plan."""


@dataclass(frozen=True, slots=True)
class Subtask:
    """One step: a capability, an instruction, and the ids of the subtasks whose outputs it needs."""

    id: str
    capability: str
    instruction: str
    depends_on: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id or len(self.id) > 128:
            raise InvalidPlan(
                f"subtask id {self.id!r} is not a string of 1 to 128 characters", hint="name it s1, s2, …"
            )
        if not self.instruction.strip():
            raise InvalidPlan("the instruction is empty", where=f"subtask {self.id!r}", hint="say what to do")
        if isinstance(self.depends_on, str):
            raise InvalidPlan(
                "depends_on is one string", where=f"subtask {self.id!r}", hint="pass a list of subtask ids"
            )
        object.__setattr__(self, "capability", capability_name(self.capability))
        object.__setattr__(self, "depends_on", tuple(dict.fromkeys(self.depends_on)))


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked DAG. Building one costs O(subtasks + dependencies), without recursion.

    Raises
    ------
    InvalidPlan
        No subtask, more than :data:`MAX_SUBTASKS`, a duplicate id, an unknown dependency, or a cycle
        (named in the message).
    """

    subtasks: Sequence[Subtask]
    _by_id: dict[str, Subtask] = field(init=False, repr=False, compare=False)
    _order: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _dependents: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _digests: tuple[str, dict[str, str]] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        subtasks = tuple(self.subtasks)
        if not subtasks:
            raise InvalidPlan("the plan has no subtasks", hint="add at least one")
        if len(subtasks) > MAX_SUBTASKS:
            raise InvalidPlan(
                f"the plan has {len(subtasks)} subtasks, at most {MAX_SUBTASKS} are allowed",
                hint="split the task",
            )
        by_id: dict[str, Subtask] = {}
        for index, subtask in enumerate(subtasks):
            if subtask.id in by_id:
                raise InvalidPlan(
                    f"the id {subtask.id!r} occurs twice",
                    where=f"$.subtasks[{index}].id",
                    hint="make ids unique",
                )
            by_id[subtask.id] = subtask
        object.__setattr__(self, "subtasks", subtasks)
        object.__setattr__(self, "_by_id", by_id)
        dependents = _dependents(subtasks, by_id)
        object.__setattr__(self, "_dependents", dependents)
        object.__setattr__(self, "_order", _topological(subtasks, dependents))

    def __len__(self) -> int:
        return len(self.subtasks)

    def __getitem__(self, subtask_id: str) -> Subtask:
        return self._by_id[subtask_id]

    def __contains__(self, subtask_id: object) -> bool:
        return subtask_id in self._by_id

    @property
    def order(self) -> tuple[str, ...]:
        """Ids in an order where dependencies come first; ties in the order given."""
        return self._order

    @property
    def sinks(self) -> tuple[str, ...]:
        """Ids on which nothing depends: their outputs are the plan's output."""
        return tuple(s.id for s in self.subtasks if not self._dependents[s.id])

    @property
    def capabilities(self) -> dict[str, int]:
        """Each capability and how many subtasks need it, in order of first use."""
        counts: dict[str, int] = {}
        for subtask in self.subtasks:
            counts[subtask.capability] = counts.get(subtask.capability, 0) + 1
        return counts

    def dependents(self, subtask_id: str) -> tuple[str, ...]:
        """Ids of the subtasks that wait for this one."""
        return self._dependents[subtask_id]

    def digests(self, root: str, make: Callable[[], dict[str, str]]) -> dict[str, str]:
        """What ``make`` gives for this root, made once for runs of one plan after another."""
        if self._digests is None or self._digests[0] != root:
            object.__setattr__(self, "_digests", (root, make()))
        assert self._digests is not None
        return dict(self._digests[1])

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        return {
            "subtasks": [
                {
                    "id": s.id,
                    "capability": s.capability,
                    "instruction": s.instruction,
                    "depends_on": list(s.depends_on),
                }
                for s in self.subtasks
            ]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of :meth:`to_dict`; every error names the path of the bad field."""
        items = data.get("subtasks") if isinstance(data, dict) else None
        if not isinstance(items, list):
            raise InvalidPlan("is not a list", where="$.subtasks", hint='use {"subtasks": [...]}')
        subtasks = []
        for index, item in enumerate(items):
            where = f"$.subtasks[{index}]"
            if not isinstance(item, dict):
                raise InvalidPlan("is not an object", where=where, hint="give id, capability, instruction")
            for key in ("id", "capability", "instruction"):
                if not isinstance(item.get(key), str):
                    raise InvalidPlan(
                        "is missing or not a string", where=f"{where}.{key}", hint="write a string"
                    )
            depends = item.get("depends_on", [])
            if not isinstance(depends, list) or not all(isinstance(d, str) for d in depends):
                raise InvalidPlan(
                    "is not a list of strings", where=f"{where}.depends_on", hint="use subtask ids"
                )
            subtasks.append(Subtask(item["id"], item["capability"], item["instruction"], depends))
        return cls(subtasks)


def _dependents(subtasks: Iterable[Subtask], by_id: Mapping[str, Subtask]) -> dict[str, tuple[str, ...]]:
    waiting: dict[str, list[str]] = {subtask_id: [] for subtask_id in by_id}
    for index, subtask in enumerate(subtasks):
        for needed in subtask.depends_on:
            if needed not in by_id:
                raise InvalidPlan(
                    f"{subtask.id!r} depends on {needed!r}, which is not in the plan",
                    where=f"$.subtasks[{index}].depends_on",
                    hint="add that subtask or drop the dependency",
                )
            waiting[needed].append(subtask.id)
    return {subtask_id: tuple(ids) for subtask_id, ids in waiting.items()}


def _topological(subtasks: Sequence[Subtask], dependents: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    missing = {s.id: len(s.depends_on) for s in subtasks}
    ready = deque(s.id for s in subtasks if not s.depends_on)
    order: list[str] = []
    while ready:
        subtask_id = ready.popleft()
        order.append(subtask_id)
        for waiting in dependents[subtask_id]:
            missing[waiting] -= 1
            if missing[waiting] == 0:
                ready.append(waiting)
    if len(order) < len(subtasks):
        raise InvalidPlan(
            f"the plan has a cycle: {' -> '.join(_cycle(subtasks, missing))}",
            hint="drop one of these dependencies",
        )
    return tuple(order)


def _cycle(subtasks: Sequence[Subtask], missing: Mapping[str, int]) -> list[str]:
    """Some cycle among the subtasks that never became ready; each of them waits for another such one."""
    by_id = {s.id: s for s in subtasks}
    node = next(s.id for s in subtasks if missing[s.id])
    seen: dict[str, int] = {}
    path: list[str] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = next(d for d in by_id[node].depends_on if missing[d])
    return [*reversed(path[seen[node] :]), path[-1]]
