"""Orchestration patterns: machines without I/O that turn events into actions."""

from pandacore.errors import ConfigError
from pandacore.patterns.base import (
    RUN,
    Action,
    Answered,
    Asked,
    AskJudgement,
    AskPlan,
    AskRanking,
    AskReplacement,
    Assigned,
    CancelRequested,
    Checkpoint,
    ClearTimer,
    Contract,
    Emit,
    Event,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
    Judged,
    Limits,
    Machine,
    PeerDown,
    PeerUp,
    Planned,
    PlanningFailed,
    Ranked,
    Reason,
    Received,
    Replacement,
    Send,
    SetTimer,
    Start,
    StopExecution,
    TimerFired,
    fold,
)
from pandacore.patterns.chain import ChainMember, ChainRoot
from pandacore.patterns.mesh import MeshMember, MeshRoot, covering_subset, instant_runoff
from pandacore.patterns.star import StarHub, StarMember, as_message

__all__ = [
    "MACHINES",
    "RUN",
    "Action",
    "Answered",
    "AskJudgement",
    "AskPlan",
    "AskRanking",
    "AskReplacement",
    "Asked",
    "Assigned",
    "CancelRequested",
    "ChainMember",
    "ChainRoot",
    "Checkpoint",
    "ClearTimer",
    "Contract",
    "Emit",
    "Event",
    "Evict",
    "Execute",
    "Executed",
    "ExecutionFailed",
    "Finish",
    "Judged",
    "Limits",
    "Machine",
    "MeshMember",
    "MeshRoot",
    "PeerDown",
    "PeerUp",
    "Planned",
    "PlanningFailed",
    "Ranked",
    "Reason",
    "Received",
    "Replacement",
    "Send",
    "SetTimer",
    "StarHub",
    "StarMember",
    "Start",
    "StopExecution",
    "TimerFired",
    "as_message",
    "covering_subset",
    "fold",
    "instant_runoff",
    "register",
]

MACHINES: dict[str, tuple[type[Machine], type[Machine]]] = {
    "star": (StarHub, StarMember),
    "failover": (StarHub, StarMember),
    "chain": (ChainRoot, ChainMember),
    "mesh": (MeshRoot, MeshMember),
}
"""The machines of a pattern: the entrypoint's and the members'. Add to it by :func:`register`.

In a ``star`` the hub calls its members; in ``failover`` it sends them messages, and two of them keep its
checkpoint, so that one goes on when the hub is lost."""


def register(name: str, root: type[Machine], member: type[Machine]) -> None:
    """Make a pattern of your own known by a name, in every process that takes part.

    A host runs members of patterns that it knows; so a module with agents is the place to register it, and
    the caller's process needs it as well. Registering the same classes again changes nothing.

    Parameters
    ----------
    name : str
        What ``Collective.run(pattern=…)`` and ``--pattern`` call it.
    root, member : Machine classes
        The constructors take ``(run, me)``, and by keyword what they want of ``plan``, ``team``, ``inputs``,
        ``idempotent``, ``redundancy``, ``debate``, ``contracts`` and ``limits``; members only ``limits``.

    Raises
    ------
    ConfigError
        The name is taken, or a class is no :class:`Machine`.
    """
    if not name or len(name) > 200 or MACHINES.get(name, (root, member)) != (root, member):
        raise ConfigError(
            f"the pattern name {name!r} is empty, too long or taken",
            where="patterns.register",
            hint="choose another",
        )
    if not all(isinstance(kind, type) and issubclass(kind, Machine) for kind in (root, member)):
        raise ConfigError(
            f"pattern {name!r} needs two Machine classes", where="patterns.register", hint="subclass Machine"
        )
    MACHINES[name] = (root, member)
