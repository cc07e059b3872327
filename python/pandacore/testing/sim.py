"""A deterministic network of pattern machines in virtual time, with faults; no socket, clock or task.

Everything that happens follows from the seed: the same seed gives the same trace hash. Each fault has an id,
so that a failing run can be repeated with fewer of them until only those that matter are left.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pandacore.errors import ConnectionLost, InputRequired, PandacoreError, StateError, UnknownOutcome
from pandacore.patterns.base import (
    Asked,
    AskJudgement,
    AskPlan,
    AskRanking,
    AskReplacement,
    Assigned,
    CancelRequested,
    Checkpoint,
    ClearTimer,
    Emit,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
    Judged,
    PeerDown,
    PeerUp,
    Planned,
    PlanningFailed,
    Ranked,
    Received,
    Replacement,
    Send,
    SetTimer,
    Start,
    StopExecution,
    TimerFired,
    fold,
)
from pandacore.patterns.star import as_message
from pandacore.task import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pandacore.patterns.base import Action, Event, Machine
    from pandacore.plan import Plan

__all__ = ["SimFailure", "SimNetwork", "SimReport", "explore"]

TRACE_LINES: Final = 2_000
"""Lines of the trace that are kept; the hash covers all."""


class SimFailure(AssertionError):
    """A property failed in a simulated run; the message holds the seed, the needed faults and the trace."""


def _draw(*parts: int) -> float:
    """A number in [0, 1) that depends on the parts alone (splitmix64)."""
    x = 0
    for part in parts:
        x = (x ^ (part & 0xFFFFFFFFFFFFFFFF)) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


@dataclass(slots=True)
class _Node:
    name: str
    build: Callable[[], Machine]
    agent: Callable[[Execute], Any] | None
    machine: Machine
    caller: bool
    up: bool = True
    incarnation: int = 1
    store: dict[str, Any] | None = None
    boundaries: int = 0
    crash_at: tuple[int, float | None] | None = None
    timers: dict[str, int] = field(default_factory=dict)
    running: dict[tuple[str, int], int] = field(default_factory=dict)
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class SimReport:
    """What a simulated run came to.

    ``finishes``: per node the value and errors it finished with. ``notes``: (time, node, note) of every
    ``Emit``. ``executions``: (time, node, subtask id, attempt) of every start of an agent's work.
    ``counters``: how often each fault and each kind of event really happened.
    """

    seed: int
    time_s: float
    events: int
    finishes: Mapping[str, Finish]
    notes: Sequence[tuple[float, str, Mapping[str, Any]]]
    executions: Sequence[tuple[float, str, str, int]]
    counters: Counter[str]
    faults: Sequence[str]
    trace: Sequence[str]
    trace_hash: str

    def noted(self, note: str) -> list[Mapping[str, Any]]:
        """The notes of one kind, in order."""
        return [n for _, _, n in self.notes if n["note"] == note]


class SimNetwork:
    """Nodes that run machines, and the network between them.

    Parameters
    ----------
    seed : int
        Decides every delay and fault.
    loss, duplicate : float
        Probability that a message is lost, or delivered twice.
    delay_s, work_s : tuple of float
        Shortest and longest time of a message and of an agent's work, in virtual seconds. Messages between
        the same two nodes overtake each other when their delays say so.
    detect_s : float
        Time until the others are told of a crash, a restart or a partition.
    calls : bool
        True: work for another node is one reliable call that ends when its node dies, instead of messages.
    only : collection of str, optional
        Ids of the only faults that may happen; None allows all that are drawn or planned.
    watch : callable, optional
        Called after every event with the network, the node's name, the event and its actions; an
        ``AssertionError`` from it is a broken invariant.
    plan, replacement, judge, rank : callable, optional
        Answers to ``AskPlan``, ``AskReplacement``, ``AskJudgement`` and ``AskRanking``: called with the
        network, the node's name and the action. An error returned by ``plan`` becomes ``PlanningFailed``;
        ``judge`` returns True, or the reason why not.

    Examples
    --------
    >>> from pandacore.patterns import StarHub, StarMember
    >>> from pandacore.plan import Plan, Subtask
    >>> net = SimNetwork(seed=1, loss=0.1)
    >>> plan = Plan([Subtask("a", "math", "add")])
    >>> net.add("hub", lambda: StarHub("r", "hub", plan, {"math": ["m"]}), caller=True)
    >>> net.add("m", lambda: StarMember("r", "m"), agent=lambda execute: 4)
    >>> net.run().finishes["hub"].value
    4
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        delay_s: tuple[float, float] = (0.001, 0.05),
        work_s: tuple[float, float] = (0.01, 0.2),
        detect_s: float = 0.3,
        calls: bool = False,
        only: Collection[str] | None = None,
        watch: Callable[[SimNetwork, str, Event, list[Action]], None] | None = None,
        plan: Callable[[SimNetwork, str, AskPlan], Plan | PandacoreError] | None = None,
        replacement: Callable[[SimNetwork, str, AskReplacement], str | None] | None = None,
        judge: Callable[[SimNetwork, str, AskJudgement], bool | str] | None = None,
        rank: Callable[[SimNetwork, str, AskRanking], Sequence[str]] | None = None,
    ) -> None:
        self.seed = seed
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self._loss, self._duplicate = loss, duplicate
        self._delay, self._work, self._detect = delay_s, work_s, detect_s
        self._calls = calls
        self._only = None if only is None else frozenset(only)
        self.watch = watch
        self.plan, self.replacement, self.judge, self.rank = plan, replacement, judge, rank
        self._nodes: dict[str, _Node] = {}
        self._agenda: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self._count = 0
        self._messages = 0
        self._faults: dict[str, None] = {}
        self._cuts: list[tuple[frozenset[str], float, float]] = []
        self._last_arrival: dict[tuple[str, str], int] = {}
        self._notes: list[tuple[float, str, Mapping[str, Any]]] = []
        self._executions: list[tuple[float, str, str, int]] = []
        self._trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._hash = blake2b(digest_size=16)
        self._tag = 0

    # -- building ----------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        build: Callable[[], Machine],
        *,
        agent: Callable[[Execute], Any] | None = None,
        caller: bool = False,
    ) -> None:
        """Add a node. ``build`` makes its machine, again after each restart; ``agent`` answers its work (an
        error returned is a failed execution, ``InputRequired`` a question); the run lasts until every
        ``caller`` has finished."""
        self._nodes[name] = _Node(name, build, agent, build(), caller)
        self._at(0.0, "start", name, 1)

    def agents(self, work: Callable[[Execute], Any]) -> None:
        """Replace the work of every agent added so far."""
        for node in self._nodes.values():
            node.agent = work if node.agent is not None else None

    @property
    def names(self) -> list[str]:
        """All nodes, in the order they were added."""
        return list(self._nodes)

    def alive(self, name: str) -> bool:
        """True while the node is up."""
        return name in self._nodes and self._nodes[name].up

    def incarnation(self, name: str) -> int:
        """How often the node was started."""
        return self._nodes[name].incarnation

    def machine(self, name: str) -> Machine:
        """The machine that the node runs now."""
        return self._nodes[name].machine

    def crash(self, name: str, *, at_s: float, restart_after_s: float | None = None) -> None:
        """Stop a node at a time; what it had not checkpointed is lost."""
        self._at(at_s, "crash", name, restart_after_s, f"crash:{name}@{at_s:.3f}")

    def crash_at(self, name: str, boundary: int, *, restart_after_s: float | None = None) -> None:
        """Stop a node right before its ``boundary``-th checkpoint, message or execution, counted from 0."""
        self._nodes[name].crash_at = (boundary, restart_after_s)

    def suspect(self, observer: str, peer: str, *, at_s: float, for_s: float) -> None:
        """Have ``observer`` told, wrongly, that ``peer`` is down; and after a while that it is up."""
        self._at(at_s, "suspect", observer, peer, for_s, f"suspect:{observer}:{peer}@{at_s:.3f}")

    def partition(self, group: Collection[str], *, at_s: float, for_s: float) -> None:
        """Cut a group of nodes off from all others for a while; both sides notice."""
        label = f"partition:{'+'.join(sorted(group))}@{at_s:.3f}"
        self._at(at_s, "partition", frozenset(group), for_s, label)

    def cancel(self, name: str, *, at_s: float) -> None:
        """Have the caller at this node ask for the end of the run."""
        self._at(at_s, "event", name, 0, CancelRequested())

    def tell(self, name: str, event: Event, *, at_s: float) -> None:
        """Hand any event to a node."""
        self._at(at_s, "event", name, 0, event)

    def chaos(
        self,
        names: Sequence[str],
        *,
        crashes: int = 0,
        suspicions: int = 0,
        partitions: int = 0,
        until_s: float = 3.0,
        restart: float = 0.5,
        observers: Sequence[str] | None = None,
    ) -> None:
        """Plan faults at random moments: crashes of ``names`` (a share ``restart`` of them come back), wrong
        suspicions of them by any node, and partitions of one of them from the rest."""
        watchers = list(observers or self._nodes)
        for _ in range(crashes):
            back = self._random() < restart
            after = 0.05 + 2 * self._random() if back else None
            self.crash(self._pick(names), at_s=until_s * self._random(), restart_after_s=after)
        for _ in range(suspicions):
            at_s, for_s = until_s * self._random(), 0.2 + 2 * self._random()
            self.suspect(self._pick(watchers), self._pick(names), at_s=at_s, for_s=for_s)
        for _ in range(partitions):
            at_s, for_s = until_s * self._random(), 0.2 + 2 * self._random()
            self.partition({self._pick(names)}, at_s=at_s, for_s=for_s)

    # -- running -----------------------------------------------------------------------------------------

    def run(self, *, until_s: float = 600.0, max_events: int = 200_000, drain: bool = False) -> SimReport:
        """Run until every caller has finished, or nothing is left to happen, or the time is over.

        ``drain``: go on after the callers have finished, to see what the others still do.
        """
        events = 0
        while self._agenda and (drain or not self._over()):
            if self._agenda[0][0] > until_s or events >= max_events:
                break  # what is left happens when the run goes on
            at, _, kind, args = heapq.heappop(self._agenda)
            self.now = at
            events += 1
            getattr(self, f"_do_{kind}")(*args)
        return self.report(events)

    def report(self, events: int = 0) -> SimReport:
        """What has happened so far."""
        finishes = {n.name: n.finish for n in self._nodes.values() if n.finish is not None}
        return SimReport(
            self.seed,
            self.now,
            events,
            finishes,
            self._notes,
            self._executions,
            self.counters,
            list(self._faults),
            list(self._trace),
            self._hash.hexdigest(),
        )

    def _over(self) -> bool:
        callers = [n for n in self._nodes.values() if n.caller]
        return bool(callers) and all(n.finish is not None for n in callers)

    # -- chance and time ---------------------------------------------------------------------------------

    def _random(self) -> float:
        self._tag += 1
        return _draw(self.seed, 1, self._tag)

    def _pick(self, names: Sequence[str]) -> str:
        return names[int(self._random() * len(names))]

    def _between(self, span: tuple[float, float], *parts: int) -> float:
        return span[0] + (span[1] - span[0]) * _draw(self.seed, *parts)

    def _at(self, time_s: float, kind: str, *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (time_s, self._count, kind, args))

    def _fault(self, label: str) -> bool:
        """True if this fault may happen; it is then on record."""
        if self._only is not None and label not in self._only:
            return False
        self._faults[label] = None
        self.counters[label.partition(":")[0].partition("#")[0]] += 1
        self._log(f"FAULT {label}")
        return True

    def _log(self, line: str) -> None:
        text = f"{self.now:9.4f} {line}"
        self._trace.append(text)
        self._hash.update(text.encode())
        self._hash.update(b"\n")

    # -- what happens ------------------------------------------------------------------------------------

    def _do_start(self, name: str, incarnation: int) -> None:
        node = self._nodes[name]
        if node.up and node.incarnation == incarnation:
            self._feed(node, Start())

    def _do_event(self, name: str, incarnation: int, event: Event) -> None:
        node = self._nodes[name]
        if node.up and incarnation in {0, node.incarnation}:
            self._feed(node, event)

    def _do_timer(self, name: str, incarnation: int, timer: str, version: int) -> None:
        node = self._nodes[name]
        if node.up and node.incarnation == incarnation and node.timers.get(timer) == version:
            del node.timers[timer]
            self._feed(node, TimerFired(timer))

    def _do_message(self, number: int, sender: str, to: str, body: str) -> None:
        node = self._nodes.get(to)
        if node is None or not node.up:
            self.counters["to_nobody"] += 1
            return
        if self._cut(sender, to):
            self.counters["cut"] += 1
            return
        pair = (sender, to)
        if self._last_arrival.get(pair, 0) > number:
            self.counters["reordered"] += 1
        self._last_arrival[pair] = max(self._last_arrival.get(pair, 0), number)
        self.counters["delivered"] += 1
        self._feed(node, Received(sender, json.loads(body)))

    def _do_worked(self, name: str, incarnation: int, key: tuple[str, int], token: int, body: str) -> None:
        node = self._nodes[name]
        if not node.up or node.incarnation != incarnation or node.running.get(key) != token:
            return
        del node.running[key]
        self._feed(node, Executed(*key, json.loads(body)))

    def _do_failed(
        self, name: str, incarnation: int, key: tuple[str, int], token: int, error: PandacoreError
    ) -> None:
        node = self._nodes[name]
        if not node.up or node.incarnation != incarnation or node.running.get(key) != token:
            return
        del node.running[key]
        self._feed(node, _ended(key, error))

    def _do_called(
        self,
        at: tuple[str, int],
        callee: tuple[str, int],
        key: tuple[str, int],
        token: int,
        body: str | PandacoreError,
    ) -> None:
        """The end of a call (``calls``): its answer, or the break of its stream."""
        (name, incarnation), (agent, life) = at, callee
        node = self._nodes[name]
        if not node.up or node.incarnation != incarnation or node.running.get(key) != token:
            return
        del node.running[key]
        worker = self._nodes[agent]
        if worker.incarnation != life or not worker.up:
            lost = UnknownOutcome("the stream broke", where=agent)
            self._feed(node, ExecutionFailed(*key, lost, executed=True))
        elif isinstance(body, PandacoreError):
            self._feed(node, _ended(key, body))
        else:
            self._feed(node, Executed(*key, json.loads(body)))

    def _do_crash(self, name: str, restart_after_s: float | None, label: str) -> None:
        node = self._nodes[name]
        if node.up and self._fault(label):
            self._crash(node, restart_after_s)

    def _crash(self, node: _Node, restart_after_s: float | None) -> None:
        node.up = False
        node.incarnation += 1
        node.timers.clear()
        node.running.clear()
        for other in self._nodes.values():
            if other is not node:
                at = self.now + self._detect * (0.5 + self._random())
                self._at(at, "event", other.name, 0, PeerDown(node.name))
        if restart_after_s is not None:
            self._at(self.now + restart_after_s, "restart", node.name)

    def _do_restart(self, name: str) -> None:
        node = self._nodes[name]
        if node.up:
            return
        self.counters["restarted"] += 1
        self._log(f"{name} restarts")
        node.up = True
        node.machine = node.build()
        if node.store is not None:
            node.machine.restore(node.store)
        for other in self._nodes.values():
            if other is node:
                continue
            at = self.now + self._detect * (1.5 + self._random())
            self._at(at, "event", other.name, 0, PeerUp(name))
            if not other.up:
                self._at(self.now + self._detect, "down_if", name, node.incarnation, other.name)
        self._feed(node, Start())

    def _do_down_if(self, name: str, incarnation: int, peer: str) -> None:
        if not self._nodes[peer].up:
            self._do_event(name, incarnation, PeerDown(peer))

    def _do_suspect(self, observer: str, peer: str, for_s: float, label: str) -> None:
        node = self._nodes[observer]
        if observer != peer and node.up and self._nodes[peer].up and self._fault(label):
            self._at(self.now + for_s, "up_if", observer, peer)
            self._feed(node, PeerDown(peer))

    def _do_up_if(self, observer: str, peer: str) -> None:
        if self._nodes[peer].up:
            self._do_event(observer, 0, PeerUp(peer))

    def _do_partition(self, group: frozenset[str], for_s: float, label: str) -> None:
        if not self._fault(label):
            return
        self._cuts.append((group, self.now, self.now + for_s))
        for a in self._nodes:
            for b in self._nodes:
                if a != b and (a in group) != (b in group):
                    if for_s > self._detect:
                        self._at(self.now + self._detect, "event", a, 0, PeerDown(b))
                    self._at(self.now + for_s + self._detect, "up_if", a, b)

    def _cut(self, a: str, b: str) -> bool:
        return any(
            (a in group) != (b in group) and start <= self.now < end for group, start, end in self._cuts
        )

    # -- what machines ask for ---------------------------------------------------------------------------

    def _feed(self, node: _Node, event: Event) -> None:
        self._log(f"{node.name} <- {event!r}")
        self.counters["events"] += 1
        actions = node.machine.handle(event)
        if self.watch is not None:
            self.watch(self, node.name, event, actions)
        for action in actions:
            if isinstance(action, Checkpoint | Send | Execute):
                if node.crash_at is not None and node.boundaries == node.crash_at[0]:
                    label = f"crash_at:{node.name}#{node.boundaries}"
                    _, restart_after_s = node.crash_at
                    node.crash_at = None
                    if self._fault(label):
                        self._crash(node, restart_after_s)
                        return
                node.boundaries += 1
            self._log(f"{node.name} -> {action!r}")
            self._carry_out(node, action)

    def _carry_out(self, node: _Node, action: Action) -> None:
        match action:
            case Send(to, message):
                self._send(node.name, to, message)
            case Execute():
                self._execute(node, action)
            case StopExecution(subtask_id, attempt, agent):
                node.running.pop((subtask_id, attempt), None)
                if agent not in {None, node.name} and not self._calls:
                    self._forward(node, action)
            case SetTimer(name, after_s):
                self._count += 1
                node.timers[name] = self._count
                self._at(self.now + after_s, "timer", node.name, node.incarnation, name, self._count)
            case ClearTimer(name):
                node.timers.pop(name, None)
            case Checkpoint(state, full):
                self.counters["checkpoints"] += 1
                node.store = fold(node.store, Checkpoint(json.loads(json.dumps(state)), full))
            case AskPlan(request, _):
                answer = (
                    StateError("nobody plans here")
                    if self.plan is None
                    else self.plan(self, node.name, action)
                )
                event: Event = (
                    PlanningFailed(answer, request)
                    if isinstance(answer, PandacoreError)
                    else Planned(answer, request)
                )
                self._later(node, event, self._work)
            case AskReplacement(capability, _):
                peer = None if self.replacement is None else self.replacement(self, node.name, action)
                self._later(node, Replacement(capability, peer), self._delay)
            case AskJudgement(subtask_id, attempt, _, _):
                verdict = True if self.judge is None else self.judge(self, node.name, action)
                reason = "" if verdict is True else str(verdict)
                self._later(node, Judged(subtask_id, attempt, verdict is True, reason), self._delay)
            case AskRanking(request, proposals):
                ranking = sorted(proposals) if self.rank is None else self.rank(self, node.name, action)
                self._later(node, Ranked(request, ranking), self._work)
            case Emit(note):
                self._notes.append((self.now, node.name, json.loads(json.dumps(dict(note)))))
                self.counters[f"note:{note['note']}"] += 1
            case Finish():
                if node.finish is None:
                    node.finish = action
            case Evict():
                pass
            case _:
                raise StateError(f"the simulator does not know {action!r}")

    def _later(self, node: _Node, event: Event, span: tuple[float, float]) -> None:
        self._count += 1
        at = self.now + self._between(span, 2, self._count)
        self._at(at, "event", node.name, node.incarnation, event)

    def _send(self, sender: str, to: str, message: Mapping[str, Any]) -> None:
        self._messages += 1
        number = self._messages
        self.counters["sent"] += 1
        body = json.dumps(message)
        if _draw(self.seed, 3, number) < self._loss and self._fault(f"loss#{number}"):
            return
        self._at(self.now + self._between(self._delay, 4, number), "message", number, sender, to, body)
        if _draw(self.seed, 5, number) < self._duplicate and self._fault(f"duplicate#{number}"):
            late = self.now + 4 * self._between(self._delay, 6, number)
            self._at(late, "message", number, sender, to, body)

    def _forward(self, node: _Node, action: Action) -> None:
        send = as_message(action, node.machine.run)
        if send is not None:
            self._send(node.name, send.to, send.message)

    def _execute(self, node: _Node, execute: Execute) -> None:
        agent, key = execute.agent, (execute.subtask_id, execute.attempt)
        if agent is None:
            ready = [c for c in execute.candidates or self._nodes if self.alive(c) and self._nodes[c].agent]
            if not ready:
                lost = ConnectionLost("no agent is up", where=execute.subtask_id)
                self._later(node, ExecutionFailed(*key, lost, executed=False), self._delay)
                return
            self._count += 1
            agent = ready[int(_draw(self.seed, 7, self._count) * len(ready))]
            self._feed(node, Assigned(*key, agent))
            execute = replace(execute, agent=agent, candidates=())
        if agent != node.name and not self._calls:
            self._forward(node, execute)
            return
        if key in node.running:
            return
        self._count += 1
        token = node.running[key] = self._count
        at = self.now + self._between(self._work, 8, self._count)
        worker = self._nodes[agent]
        if agent != node.name and not worker.up:
            del node.running[key]
            lost = ConnectionLost("the agent's node is down", where=agent)
            self._later(node, ExecutionFailed(*key, lost, executed=False), self._delay)
            return
        self._executions.append((self.now, agent, *key))
        self.counters["executions"] += 1
        output = None if worker.agent is None else worker.agent(execute)
        body = output if isinstance(output, PandacoreError) else json.dumps(output)
        if agent != node.name:
            ends = (node.name, node.incarnation), (agent, worker.incarnation)
            self._at(at, "called", *ends, key, token, body)
        elif isinstance(body, PandacoreError):
            self._at(at, "failed", node.name, node.incarnation, key, token, body)
        else:
            self._at(at, "worked", node.name, node.incarnation, key, token, body)


def _ended(key: tuple[str, int], error: PandacoreError) -> Event:
    """How an execution ended that gave no output."""
    if not isinstance(error, InputRequired):
        return ExecutionFailed(*key, error, executed=True)
    asked = [q if isinstance(q, Question) else Question(str(q)) for q in error.questions]
    return Asked(*key, [{"id": q.id, "text": q.text, "schema": q.schema} for q in asked], error.state)


def explore(
    build: Callable[[SimNetwork], None],
    check: Callable[[SimNetwork, SimReport], None],
    *,
    seeds: Iterable[int],
    until_s: float = 600.0,
    shrink: int = 150,
    **options: Any,
) -> Counter[str]:
    """Run ``build`` and ``check`` on many seeds; return how often each fault and event happened in all.

    A run that fails ``check`` (by ``AssertionError``) is repeated with fewer and fewer faults, at most
    ``shrink`` times, and reported with those that are needed.

    Raises
    ------
    SimFailure
        With the seed, the faults that are needed, and the end of the trace.
    """
    total: Counter[str] = Counter()

    def attempt(seed: int, only: Collection[str] | None) -> tuple[SimReport, AssertionError | None]:
        net = SimNetwork(seed, only=only, **options)
        build(net)
        try:
            report = net.run(until_s=until_s)
            check(net, report)
        except AssertionError as error:
            return net.report(), error
        return report, None

    for seed in seeds:
        report, error = attempt(seed, None)
        total += report.counters
        if error is None:
            continue
        kept, runs, size = list(report.faults), 0, max(len(report.faults) // 2, 1)
        while runs < shrink and kept:
            for start in range(0, len(kept), size):
                fewer = kept[:start] + kept[start + size :]
                again, still = attempt(seed, fewer)
                runs += 1
                if still is not None:
                    kept, report, error = fewer, again, still
                    break
                if runs >= shrink:
                    break
            else:
                if size == 1:
                    break
                size //= 2
        tail = "\n".join(report.trace[-120:])
        raise SimFailure(
            f"seed {seed}: {error}\nfaults needed ({len(kept)}): {', '.join(kept) or 'none'}\n"
            f"last events of that run:\n{tail}"
        ) from error
    return total
