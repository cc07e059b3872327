from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Final, Literal, NoReturn, Self, final

import numpy as np
from numpy.typing import NDArray

RELEASE_BUILD: Final[bool]
__version__: Final[str]

# trust
@final
class KeyPair:
    def __new__(cls, seed: bytes) -> KeyPair: ...
    @property
    def public(self) -> bytes: ...
    def seed(self) -> bytes: ...
    def sign(self, message: bytes) -> bytes: ...
    def certify(
        self,
        collective: bytes,
        subject: bytes,
        serial: int,
        not_before: int,
        not_after: int,
        max_depth: int,
        amount: int,
    ) -> bytes: ...
    def consent(self, record: bytes) -> bytes: ...
    def revoke(self, collective: bytes, issuer: bytes, subject: bytes, serial: int, at: int) -> bytes: ...
    def retire(self, collective: bytes, at: int) -> bytes: ...
    def compromised(self, collective: bytes, at: int) -> bytes: ...
    def expel(self, collective: bytes, subject: bytes, at: int) -> bytes: ...
    def report(
        self, collective: bytes, subject: bytes, epoch: int, counter: int, x: float, y: float
    ) -> bytes: ...

def verify_signature(public: bytes, message: bytes, signature: bytes) -> bool: ...
def did_of(public: bytes) -> str: ...
def parse_did(text: str) -> bytes: ...
def collective_id(members: Sequence[bytes], threshold: int, label: str) -> bytes: ...
def decode_record(
    record: bytes,
) -> tuple[
    Literal["certificate", "revoked", "retired", "compromised", "expel"],
    bytes,
    bytes,
    bytes,
    bytes,
    bytes,
    int,
    int,
    int,
    int,
    int,
]: ...
def verify_record(record: bytes) -> None: ...

@final
class TrustSearch:
    """The path rule of one policy on one graph, resolved once; made by ``TrustGraph.search``."""

    def distance(self, anchor: int, target: int) -> int | None:
        """Length of the shortest accepted chain, None without one."""
    def distances(self, anchors: NDArray[np.uint32], targets: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Distances of pairs, -1 where there is no chain."""
    def reach_count(self, anchor: int) -> int:
        """Number of nodes that the anchor accepts, itself included."""
    def reach(self, anchor: int) -> NDArray[np.uint32]:
        """Nodes that the anchor accepts, in order of distance."""

@final
class TrustCore:
    def __new__(
        cls,
        members: Sequence[bytes],
        threshold: int,
        label: str,
        latched: bool,
        grace: int,
        quota: tuple[int, int] | None,
        max_lifetime: int,
        clock_skew: int,
        per_signer: int,
        total: int,
        now: int,
    ) -> TrustCore: ...
    @property
    def collective(self) -> bytes: ...
    @property
    def now(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def arcs(self) -> int: ...
    @property
    def statements(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def digest(self) -> bytes: ...
    def node(self, agent: bytes) -> int | None: ...
    def agent(self, node: int) -> bytes: ...
    def intern(self, agent: bytes) -> int: ...
    def intern_many(self, agents: NDArray[np.uint8]) -> NDArray[np.uint32]: ...
    def ingest(self, record: bytes) -> None: ...
    def ingest_many(self, records: list[bytes], threads: int) -> NDArray[np.uint8]: ...
    def export(self) -> list[bytes]: ...
    def admit(
        self,
        issuers: NDArray[np.uint32],
        subjects: NDArray[np.uint32],
        serials: NDArray[np.uint64],
        begins: NDArray[np.uint32],
        ends: NDArray[np.uint32],
        max_depth: int,
        amount: int,
    ) -> NDArray[np.uint8]: ...
    def end_many(
        self,
        issuers: NDArray[np.uint32],
        subjects: NDArray[np.uint32],
        serials: NDArray[np.uint64],
        at: int,
    ) -> NDArray[np.uint8]: ...
    def compromise_many(self, nodes: NDArray[np.uint32]) -> None: ...
    def load(
        self,
        nodes: int,
        issuers: NDArray[np.uint32],
        subjects: NDArray[np.uint32],
        begins: NDArray[np.uint32],
        ends: NDArray[np.uint32],
    ) -> None: ...
    def apply(
        self,
        kinds: NDArray[np.uint8],
        issuers: NDArray[np.uint32],
        subjects: NDArray[np.uint32],
        begins: NDArray[np.uint32],
        ends: NDArray[np.uint32],
    ) -> None: ...
    def advance(self, to: int) -> None: ...
    def path_search(self, max_depth: int, flags: int) -> TrustSearch: ...
    def need_members(self) -> None: ...
    def is_member(self, node: int) -> bool: ...
    def members(self) -> NDArray[np.bool_]: ...
    def key_state(self, node: int) -> Literal["", "retired", "compromised", "expelled"]: ...
    def add_set(
        self,
        anchors: Sequence[int],
        threshold: int,
        anchor_weight: int,
        max_depth: int | None,
        mutual: bool,
        members_only: bool,
    ) -> int: ...
    def drop_set(self, id: int) -> None: ...
    def layer(self, id: int, node: int) -> int: ...
    def trusts(self, id: int, node: int) -> bool: ...
    def trusts_many(self, id: int, nodes: NDArray[np.uint32]) -> NDArray[np.bool_]: ...
    def set_layers(self, id: int) -> NDArray[np.uint32]: ...
    def set_version(self, id: int) -> tuple[int, int, int]: ...
    def set_len(self, id: int) -> int: ...
    def bitmap(self, id: int) -> NDArray[np.uint64]: ...
    def reach(
        self, anchors: Sequence[int], max_depth: int, flags: int
    ) -> tuple[NDArray[np.uint32], list[int]]: ...
    def reach_threshold(
        self, anchors: Sequence[int], threshold: int, anchor_weight: int, max_depth: int | None
    ) -> tuple[NDArray[np.uint32], list[int]]: ...
    def reach_sizes(
        self,
        anchors: NDArray[np.uint32],
        threshold: int,
        anchor_weight: int,
        max_depth: int,
        flags: int,
        mask: NDArray[np.uint64] | None,
        threads: int,
    ) -> NDArray[np.uint32]: ...
    def witness(
        self, anchors: Sequence[int], target: int, max_depth: int, flags: int
    ) -> list[int] | None: ...
    def live_certificates(self, node: int, beyond_budget: bool) -> list[tuple[int, bytes, int, int]]: ...
    def live_record(self, issuer: int, subject: int) -> bytes | None: ...
    def issued(self, issuer: int) -> int: ...
    def flow(self, anchors: Sequence[int], target: int, limit: int) -> int: ...
    def advogato(self, seeds: Sequence[int], capacities: Sequence[int]) -> NDArray[np.uint32]: ...

# reputation
def open_report(report: bytes, collective: bytes) -> tuple[bytes, bytes, int, int, float, float]: ...

@final
class ReputationCore:
    def __new__(
        cls,
        decay: float,
        idle: float,
        long_decay: float,
        long_exclusion: tuple[float, float],
        aspiration: float,
        deviation: float,
        slack: float,
        weight: float,
        witness_limit: float,
        mean_limit: float | None,
        confident: tuple[float, float],
        second_hand: str,
        share: float,
        watchdog: tuple[float, float],
        report_age: int,
        capacity: int,
    ) -> ReputationCore: ...
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def observe(self, observer: int, peer: int, bad: bool, epoch: int) -> None: ...
    def observe_many(
        self,
        observers: NDArray[np.uint32],
        peers: NDArray[np.uint32],
        bad: NDArray[np.bool_],
        epoch: int,
    ) -> None: ...
    def standing(
        self, observer: int, peer: int, epoch: int
    ) -> tuple[
        tuple[float, float],
        tuple[float, float],
        tuple[float, float],
        int,
        float,
        float,
        float,
        float,
        bool,
    ]: ...
    def scores(
        self, observers: NDArray[np.uint32], peers: NDArray[np.uint32], epoch: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]: ...
    def rank(self, observer: int, candidates: NDArray[np.uint32], epoch: int) -> NDArray[np.uint32]: ...
    def hear(
        self,
        receiver: int,
        witness: int,
        subject: int,
        trusted: bool,
        written: int,
        counter: int,
        x: float,
        y: float,
        epoch: int,
    ) -> tuple[bool, float, tuple[float, float]]: ...
    def witness(self, receiver: int, witness: int) -> tuple[float, float]: ...
    def certifier_event(self, certifier: int, bad: bool) -> None: ...
    def certifier(self, certifier: int) -> tuple[float, float]: ...
    def forget(self, epoch: int, closeness: float) -> int: ...

# matching
@final
class Capability:
    """A capability of one registry, resolved once. ``int(capability)`` is its handle in arrays."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    def __index__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class RegistryCore:
    def __new__(
        cls,
        *,
        seed: int = 0,
        signatures: bool = True,
        trust_by_default: bool = True,
        restored: RestoredRegistry | None = None,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def __contains__(self, agent: object, /) -> bool: ...
    @property
    def slots(self) -> int:
        """Slots handed out so far: the length of an array indexed by slot."""
    def capability(self, name: str | Capability) -> Capability:
        """The handle of a capability; the name and its parents are entered in the vocabulary."""
    def capabilities(self) -> list[str]:
        """All known names, parents included, in the order they became known."""
    def tags(self) -> list[str]: ...
    def announce(
        self,
        agent_id: bytes,
        capabilities: Sequence[str | Capability],
        *,
        version: int | None = None,
        load: int = 0,
        domain: int = 0,
        cost: int = 0,
        service_s: float | None = None,
        rtt_s: float | None = None,
        concurrency: int = 1,
        tags: Sequence[str] = ...,
    ) -> int:
        """Take an announcement in and return the agent's slot.

        ``version`` absent is one more than the last known, also of a withdrawn agent. An older or equal
        version changes nothing. ``domain`` 0 means none; loads above 65535 count as that.
        """
    def announce_columns(
        self,
        ids: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        capabilities: NDArray[np.uint32],
        *,
        versions: NDArray[np.uint64] | None,
        loads: NDArray[np.uint16] | None,
        domains: NDArray[np.uint16] | None,
        costs: NDArray[np.uint16] | None,
        services: NDArray[np.float64] | None,
        rtts: NDArray[np.float64] | None,
        concurrency: NDArray[np.uint8] | None,
        alive: NDArray[np.bool_] | None,
        trusted: NDArray[np.bool_] | None,
    ) -> NDArray[np.uint32]: ...
    def withdraw(self, agent_id: bytes, *, version: int | None = None) -> bool:
        """Withdraw an agent; true if it was registered. Remembered: a late announcement of that version or an
        older one does not bring it back."""
    def set_load(self, agent: bytes | int, load: int) -> None: ...
    def set_load_columns(self, slots: NDArray[np.uint32], loads: NDArray[np.uint16]) -> None: ...
    def set_speed(
        self,
        agent: bytes | int,
        *,
        service_s: float | None = None,
        rtt_s: float | None = None,
        cost: int | None = None,
        concurrency: int | None = None,
    ) -> None: ...
    def set_alive(self, agent: bytes | int, alive: bool) -> None: ...
    def set_trusted(self, agent: bytes | int, trusted: bool) -> None: ...
    def set_draining(self, agent: bytes | int, draining: bool) -> None: ...
    def set_flag_columns(self, flag: str, slots: NDArray[np.uint32], values: NDArray[np.bool_]) -> None: ...
    def set_trusted_words(self, bitmap: NDArray[np.uint64]) -> None: ...
    def slot_of(self, agent_id: bytes) -> int | None: ...
    def id_of(self, slot: int) -> bytes: ...
    def holders(self, capability: str | Capability) -> list[bytes]:
        """Ids of the agents with the capability or one below it, those that may be chosen first."""
    def available(self, capability: str | Capability) -> int:
        """How many agents with the capability may be chosen now."""
    def get(self, agent: bytes | int) -> AgentRecord | None: ...
    def prepare_spec(
        self,
        required: Sequence[tuple[Sequence[str], int]],
        *,
        mode: str,
        quality: str,
        probes: int,
        domain_cap: int | None,
        cost_cap: int | None,
        tags: Sequence[str],
        exclude: Sequence[bytes],
        must_include: Sequence[bytes],
    ) -> PreparedSpec: ...
    def assemble_prepared(
        self, spec: PreparedSpec, seed: int | None = None, trusted: NDArray[np.uint64] | None = None
    ) -> Team: ...
    def assemble_rows(
        self, capabilities: NDArray[np.uint32], per_capability: int, probes: int, seed: int | None
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]: ...
    def snapshot_bytes(self) -> bytes: ...
    @staticmethod
    def restore_bytes(data: bytes) -> RestoredRegistry: ...
    def time_assembly(
        self,
        capabilities: NDArray[np.uint32],
        *,
        mode: str,
        per_capability: int,
        probes: int,
        chunk: int,
        seed: int,
        calls: int | None = None,
    ) -> tuple[NDArray[np.float64], float]:
        """Nanoseconds per call of the Rust API, a sample per ``chunk`` calls; and the mean team size.

        Each row is prepared once; the calls go round the rows, once if ``calls`` is not given.
        """
    def memory(self) -> dict[str, int]:
        """Bytes in use, by part."""

class ViewerCore:
    def __new__(cls, registry: RegistryCore) -> Self: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def set_trusted_columns(self, slots: NDArray[np.uint32], values: NDArray[np.bool_]) -> None: ...
    def trusts_slot(self, slot: int) -> bool: ...
    def assemble_prepared(self, spec: PreparedSpec, seed: int | None = None) -> Team: ...

@final
class ProbingCore:
    def __new__(
        cls,
        policy: str,
        *,
        d: int,
        sample: int,
        shortlist: int,
        extra: int,
        fresh: int,
        local_below: float,
        ignore_from: float,
        tries: int,
        timeout_s: tuple[float, float],
    ) -> Self: ...
    def advise(
        self, known: Sequence[tuple[int, int, float, float, float]], service_s: float, seed: int
    ) -> tuple[bool, list[int], float]: ...
    def choose(self, known: Sequence[tuple[int, int, float, float, float]], seed: int) -> list[int]: ...
    @staticmethod
    def queue_limit(concurrency: int) -> int: ...

class TeamEvent:
    """What happens to the owner of a team."""

    @final
    class Start(TeamEvent):
        """Begin, or go on after ``resume``."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Found(TeamEvent):
        """Answer to ``Match``: (requirement, agent), trusted and able in the owner's eyes."""

        __match_args__ = ("candidates",)
        def __new__(cls, candidates: Sequence[tuple[int, int]]) -> Self: ...
        @property
        def candidates(self) -> list[tuple[int, int]]: ...

    @final
    class Accepted(TeamEvent):
        """An agent accepts its reservation."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class Refused(TeamEvent):
        """An agent refuses its reservation."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class Offered(TeamEvent):
        """An answer to a solicitation, trusted and able in the owner's eyes."""

        __match_args__ = ("requirement", "agent")
        def __new__(cls, requirement: int, agent: int) -> Self: ...
        @property
        def requirement(self) -> int: ...
        @property
        def agent(self) -> int: ...

    @final
    class Suspected(TeamEvent):
        """The failure detector suspects an agent."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class Alive(TeamEvent):
        """A suspected agent proved to be alive."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class Faulty(TeamEvent):
        """An agent's output was judged wrong."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class Result(TeamEvent):
        """An output arrived from an agent."""

        __match_args__ = ("subtask", "agent")
        def __new__(cls, subtask: int, agent: int) -> Self: ...
        @property
        def subtask(self) -> int: ...
        @property
        def agent(self) -> int: ...

    @final
    class Expired(TeamEvent):
        """A timer of ``SetTimer`` ran out."""

        __match_args__ = ("timer", "of")
        def __new__(cls, timer: Literal["reserve", "solicit", "dispatch", "assembly"], of: int) -> Self: ...
        @property
        def timer(self) -> Literal["reserve", "solicit", "dispatch", "assembly"]: ...
        @property
        def of(self) -> int: ...

    @final
    class Deposed(TeamEvent):
        """An owner with a higher epoch exists."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Cancel(TeamEvent):
        """The caller gives up."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    def __eq__(self, other: object, /) -> bool: ...

class TeamEffect:
    """What the owner of a team wants done, in this order."""

    @final
    class Checkpoint(TeamEffect):
        """Store the state by compare-and-set on the epoch before anything that follows."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Match(TeamEffect):
        """Find candidates: (requirement, how many), none of ``without``."""

        __match_args__ = ("wanted", "without")
        def __new__(cls, wanted: Sequence[tuple[int, int]], without: Sequence[int]) -> Self: ...
        @property
        def wanted(self) -> list[tuple[int, int]]: ...
        @property
        def without(self) -> list[int]: ...

    @final
    class Reserve(TeamEffect):
        """Ask an agent to join."""

        __match_args__ = ("agent", "requirement")
        def __new__(cls, agent: int, requirement: int) -> Self: ...
        @property
        def agent(self) -> int: ...
        @property
        def requirement(self) -> int: ...

    @final
    class Release(TeamEffect):
        """Tell an agent that it is free."""

        __match_args__ = ("agent",)
        def __new__(cls, agent: int) -> Self: ...
        @property
        def agent(self) -> int: ...

    @final
    class View(TeamEffect):
        """Tell all members who is in the team."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Dispatch(TeamEffect):
        """Send a subtask."""

        __match_args__ = ("subtask", "agent")
        def __new__(cls, subtask: int, agent: int) -> Self: ...
        @property
        def subtask(self) -> int: ...
        @property
        def agent(self) -> int: ...

    @final
    class Acknowledge(TeamEffect):
        """Tell a sender that its output is stored, or not needed."""

        __match_args__ = ("subtask", "agent")
        def __new__(cls, subtask: int, agent: int) -> Self: ...
        @property
        def subtask(self) -> int: ...
        @property
        def agent(self) -> int: ...

    @final
    class Solicit(TeamEffect):
        """Broadcast that agents are wanted."""

        __match_args__ = ("requirement", "missing")
        def __new__(cls, requirement: int, missing: int) -> Self: ...
        @property
        def requirement(self) -> int: ...
        @property
        def missing(self) -> int: ...

    @final
    class SetTimer(TeamEffect):
        """Start a timer; again restarts it. ``of`` is the agent, requirement or subtask."""

        __match_args__ = ("timer", "of")
        def __new__(cls, timer: Literal["reserve", "solicit", "dispatch", "assembly"], of: int) -> Self: ...
        @property
        def timer(self) -> Literal["reserve", "solicit", "dispatch", "assembly"]: ...
        @property
        def of(self) -> int: ...

    @final
    class Ended(TeamEffect):
        """The task ended: see the phase."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    def __eq__(self, other: object, /) -> bool: ...

@final
class TeamState:
    """The owner's side of a team: members, what runs where, what is done. Immutable; also the checkpoint.

    Parameters
    ----------
    wanted : sequence of int
        Agents wanted per requirement.
    subtasks : sequence of (int, sequence of int)
        The requirement whose agents can do it, and the earlier subtasks whose outputs it needs.
    epoch : int
        Fencing number of this owner.
    solicitations, reservations : int
        Times a requirement is solicited before it counts as hopeless; times a reservation is sent before the
        agent counts as silent.

    Raises
    ------
    ConfigError
        A subtask names a requirement that is none, or one of the subtasks that come after it.
    """

    def __new__(
        cls,
        wanted: Sequence[int],
        subtasks: Sequence[tuple[int, Sequence[int]]],
        *,
        epoch: int = 1,
        solicitations: int = 2,
        reservations: int = 3,
    ) -> Self: ...
    def step(self, event: TeamEvent) -> tuple[TeamState, list[TeamEffect]]:
        """The state after an event, and what to do. Late, repeated and unknown events change nothing."""
    def resume(self, epoch: int) -> TeamState:
        """A successor's state from this checkpoint, with a higher epoch; feed ``TeamEvent.Start`` next."""
    @property
    def epoch(self) -> int: ...
    @property
    def view(self) -> int:
        """Counts changes of membership."""
    @property
    def phase(self) -> Literal["forming", "running", "completed", "failed", "deposed"]: ...
    @property
    def failure(self) -> Literal["unmatched", "no_replacement", "deadline", "cancelled"] | None: ...
    @property
    def members(self) -> list[list[int]]:
        """Agents per requirement."""
    @property
    def assigned(self) -> list[int | None]:
        """Agent of each subtask that is under way."""
    @property
    def done(self) -> list[int | None]:
        """Whose output each finished subtask has."""
    @property
    def evicted(self) -> dict[int, Literal["crash", "revived", "faulty"]]:
        """Who left, and why."""
    def __eq__(self, other: object, /) -> bool: ...

class WorkerEvent:
    """What happens to a worker."""

    @final
    class Reserve(WorkerEvent):
        """The owner asks for a reservation; ``room``: the queue takes one more."""

        __match_args__ = ("epoch", "room")
        def __new__(cls, epoch: int, room: bool) -> Self: ...
        @property
        def epoch(self) -> int: ...
        @property
        def room(self) -> bool: ...

    @final
    class Release(WorkerEvent):
        """The owner lets it go."""

        __match_args__ = ("epoch",)
        def __new__(cls, epoch: int) -> Self: ...
        @property
        def epoch(self) -> int: ...

    @final
    class Dispatch(WorkerEvent):
        """The owner sends a subtask."""

        __match_args__ = ("epoch", "subtask")
        def __new__(cls, epoch: int, subtask: int) -> Self: ...
        @property
        def epoch(self) -> int: ...
        @property
        def subtask(self) -> int: ...

    @final
    class Finished(WorkerEvent):
        """The subtask's own work ended."""

        __match_args__ = ("subtask",)
        def __new__(cls, subtask: int) -> Self: ...
        @property
        def subtask(self) -> int: ...

    @final
    class Acknowledged(WorkerEvent):
        """The owner stored an output, or does not need it."""

        __match_args__ = ("subtask",)
        def __new__(cls, subtask: int) -> Self: ...
        @property
        def subtask(self) -> int: ...

    @final
    class LeaseExpired(WorkerEvent):
        """The owner was not heard of for the time of the reservation."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    def __eq__(self, other: object, /) -> bool: ...

class WorkerEffect:
    """What a worker wants done."""

    @final
    class Accept(WorkerEffect):
        """Tell the owner yes."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Refuse(WorkerEffect):
        """Tell the owner no."""

        __match_args__ = ()
        def __new__(cls) -> Self: ...

    @final
    class Run(WorkerEffect):
        """Start to work; happens once per subtask."""

        __match_args__ = ("subtask",)
        def __new__(cls, subtask: int) -> Self: ...
        @property
        def subtask(self) -> int: ...

    @final
    class Send(WorkerEffect):
        """Send the output (again)."""

        __match_args__ = ("subtask",)
        def __new__(cls, subtask: int) -> Self: ...
        @property
        def subtask(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...

@final
class WorkerState:
    """A worker's side of one task. Immutable."""

    def __new__(cls) -> Self: ...
    def step(self, event: WorkerEvent) -> tuple[WorkerState, list[WorkerEffect]]:
        """The state after an event, and what to do."""
    @property
    def epoch(self) -> int:
        """Highest epoch seen."""
    @property
    def held(self) -> bool:
        """Reserved, or at work, for this task."""
    @property
    def subtasks(self) -> dict[int, Literal["running", "finished", "stored"]]: ...

@final
class LateBinding:
    """One piece of work queued at several agents: the first that is free for it gets it, the others drop it.

    Whoever is free first has the shortest queue, however stale the known loads were. Agents are numbers, such
    as slots.
    """

    def __new__(cls, agents: Sequence[int]) -> Self: ...
    def claim(self, agent: int) -> tuple[bool, list[int]]:
        """An agent is free for it: whether it gets it, and the agents that should drop it then."""
    def lost(self, agent: int) -> list[int]:
        """An agent refused, was lost or gave up: the agents to queue the work at again, if it had it."""
    @property
    def bound(self) -> int | None:
        """Who has it."""
    @property
    def queued(self) -> list[int]:
        """Where it may still wait, or who could take over."""

def simulate_balance(
    balancer: str,
    *,
    d: int = 2,
    blocks: int = 2,
    agents: int = 1000,
    entries: int = 16,
    load: float = 0.9,
    spread: float = 4.0,
    sigma: float = 1.0,
    refresh: float = 0.0,
    jobs: int = 200_000,
    seed: int = 1,
) -> dict[str, float]:
    """Run one load-balancing simulation; times are in mean service times."""

@final
class RestoredRegistry:
    """A registry read from a snapshot, for the constructor."""

@final
class PreparedSpec:
    """A team specification resolved against one registry."""

    def assemble(self, seed: int | None = None) -> Team:
        """As ``registry.assemble(prepared)``, one call less."""
    @property
    def wanted(self) -> int:
        """Agents wanted in total."""

@final
class AgentRecord:
    """All that a registry knows about one agent."""

    @property
    def agent_id(self) -> bytes: ...
    @property
    def slot(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def capabilities(self) -> tuple[str, ...]:
        """Sorted, without the parents they imply."""
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def load(self) -> int: ...
    @property
    def domain(self) -> int: ...
    @property
    def cost(self) -> int: ...
    @property
    def service_s(self) -> float: ...
    @property
    def rtt_s(self) -> float: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def score(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def draining(self) -> bool: ...

@final
class Member:
    """One agent of a team."""

    @property
    def agent_id(self) -> bytes: ...
    @property
    def slot(self) -> int: ...
    @property
    def capabilities(self) -> tuple[str, ...]:
        """The required capabilities that it serves, as the specification names them."""
    @property
    def capability(self) -> str:
        """The first of them; in a dedicated team the only one."""
    @property
    def load(self) -> int: ...
    @property
    def score(self) -> int:
        """What candidates were ordered by when it was chosen; lower is better."""

@final
class Certificate:
    """Proof that no complete team exists: too few agents have any of ``capabilities``."""

    @property
    def capabilities(self) -> tuple[str, ...]: ...
    @property
    def wanted(self) -> int: ...
    @property
    def available(self) -> int: ...
    @property
    def short(self) -> int: ...

@final
class Team:
    """What an assembly found."""

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order of the required capabilities. Built at the first look."""
    @property
    def slots(self) -> NDArray[np.uint32]: ...
    @property
    def scores(self) -> NDArray[np.uint16]: ...
    @property
    def complete(self) -> bool: ...
    @property
    def missing(self) -> dict[str, int]:
        """Agents missing per capability; empty when complete or when only a cap or an inclusion fails."""
    @property
    def reason(self) -> Literal["agents", "cost", "must_include"] | None:
        """Why it is incomplete."""
    @property
    def certificate(self) -> Certificate | None: ...
    @property
    def lower_bound(self) -> int:
        """No complete team has fewer members."""
    @property
    def optimal(self) -> bool:
        """For sure: least total score (dedicated) or fewest members (consolidated)."""
    @property
    def mode(self) -> Literal["dedicated", "consolidated"]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Member]: ...
    def __bool__(self) -> NoReturn:
        """Raises: say ``team.complete`` or ``len(team)``."""

# broker
@final
class SubsetCore:
    def __new__(cls, ids: NDArray[np.uint64]) -> SubsetCore: ...
    def __len__(self) -> int: ...

@final
class SearchParams:
    def __new__(
        cls,
        *,
        k: int,
        ef: int,
        recall: float,
        threshold: float | None,
        require: int,
        forbid: int,
        subset: SubsetCore | None,
        exclude: NDArray[np.uint64] | None,
        executor: str | None,
        rerank: int,
    ) -> SearchParams: ...

@final
class SemanticIndexCore:
    def __new__(
        cls,
        *,
        dim: int,
        metric: str,
        rerank: str,
        m: int,
        ef_construction: int,
        flags: Sequence[str],
        model: str,
        seed: int,
        consolidate_at: float,
    ) -> SemanticIndexCore: ...
    @staticmethod
    def load(path: PathLike[str], dim: int | None, model: str | None) -> SemanticIndexCore: ...
    def save(self, path: PathLike[str]) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def rerank(self) -> str: ...
    @property
    def m(self) -> int: ...
    @property
    def ef_construction(self) -> int: ...
    @property
    def flag_names(self) -> list[str]: ...
    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def buried(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def instruction_set(self) -> str: ...
    def __len__(self) -> int: ...
    def contains(self, id: int) -> bool: ...
    def get(self, id: int) -> NDArray[np.float32] | None: ...
    def flags(self, id: int) -> int | None: ...
    def ids(self) -> NDArray[np.uint64]: ...
    def put(
        self, ids: NDArray[np.uint64], vectors: NDArray[np.float32], *, flags: int, mode: str, threads: int
    ) -> int: ...
    def remove(self, ids: NDArray[np.uint64]) -> int: ...
    def set_flag(self, flag: int, ids: NDArray[np.uint64], values: NDArray[np.bool_]) -> None: ...
    def consolidate(self) -> None: ...
    def search(
        self, query: NDArray[np.float32], params: SearchParams
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int, str, int]: ...
    def search_batch(
        self, queries: NDArray[np.float32], params: SearchParams, *, threads: int, interleave: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int, str, int]: ...

# gossip
def encode_announcement(
    capabilities: list[str],
    *,
    name: str,
    description: str,
    endpoint: str,
    since: int,
    proof: bytes,
    not_after: int,
    load: int,
    concurrency: int,
    cost: int,
    subscription: tuple[str, float, bytes] | None,
    certificates: bytes,
    subscription_text: str,
) -> bytes: ...
def hosting_message(collective: bytes, agent: bytes, host: bytes, since: int) -> bytes: ...
def team_identity(seed: bytes) -> tuple[bytes, bytes]: ...
def team_anchor(host: bytes) -> tuple[bytes, str]: ...
def ticket_message(collective: bytes, host: bytes, not_after: int) -> bytes: ...
def trust_record_key(record: bytes) -> bytes: ...
def time_replica(agents: int, rounds: int, seed: int) -> tuple[list[float], float]: ...
def comparison_sizes(hosts: int) -> tuple[int, int]: ...
def simulate_rumor(
    agents: int, loss: float, pushes: int, seed: int
) -> tuple[int, int, int, int, int, float]: ...
def simulate_round(agents: int, fanout: int, seed: int) -> tuple[int, float]: ...
def simulate_average(agents: int, loss: float, tolerance: float, seed: int) -> tuple[int, float]: ...
def simulate_faults(first: int, seeds: int) -> int: ...
def simulate_detection(
    hosts: int, crashes: int, loss: float, seed: int
) -> tuple[list[float], list[float], float]: ...
def simulate_false_deaths(
    hosts: int, hours: float, loss: float, seed: int
) -> tuple[float, int, int, int]: ...
def simulate_idle(hosts: int, agents: int, seconds: float, seed: int) -> tuple[float, float]: ...
def simulate_pauses(hosts: int, share: float, rounds: int, seed: int) -> tuple[int, float, float]: ...
def simulate_healing(hosts: int, seconds: float, seed: int) -> float: ...
def simulate_tree(
    hosts: int, senders: int, changes: int, loss: float, seed: int
) -> tuple[float, float, float, float]: ...

@final
class NodeCore:
    def __new__(
        cls,
        key_seed: bytes,
        collective: bytes,
        *,
        bind: str,
        advertise: str | None,
        seeds: list[tuple[str, bytes | None]],
        state_dir: str | None,
        admission: bytes | None,
        ticket: tuple[int, bytes] | None,
        seed: int | None,
    ) -> NodeCore: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def id(self) -> bytes: ...
    @property
    def collective(self) -> bytes: ...
    @property
    def epoch(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    def join_state(self) -> Literal["searching", "fetching", "complete"]: ...
    def refusal(self) -> tuple[str, str, Any, Any] | None: ...
    def stop_reason(self) -> str | None: ...
    def wait(self, after: int, timeout_s: float) -> int: ...
    def descriptor(self) -> int: ...
    def drain(self) -> None: ...
    def publish(self, records: list[tuple[int, bytes, bytes | None]]) -> int: ...
    def publish_synthetic(self, count: int, seed: int, capabilities: int) -> None: ...
    def members(self) -> list[tuple[bytes, str, int, int, list[str], int]]: ...
    def members_version(self) -> int: ...
    def agent(self, agent_id: bytes) -> dict[str, Any] | None: ...
    def agent_agreed(self, agent_id: bytes) -> bool: ...
    def agents(
        self, place: tuple[bytes, int] | None, limit: int
    ) -> tuple[list[dict[str, Any]], tuple[bytes, int] | None]: ...
    def changes(self, after: int) -> tuple[int, bool, list[tuple[int, bytes]]]: ...
    def payload(self, kind: int, key: bytes) -> bytes | None: ...
    def payloads(self, kind: int) -> list[bytes]: ...
    def feed(self, registry: RegistryCore) -> tuple[int, int, int]: ...
    def request(self, number: int, capabilities: list[str], patience_s: int) -> None: ...
    def offers(self, number: int) -> list[tuple[bytes, list[bytes]]]: ...
    def requests(self, after: int) -> list[tuple[int, bytes, int, list[str]]]: ...
    def offer(self, origin: bytes, number: int, agents: list[bytes]) -> None: ...
    def root(self) -> bytes: ...
    def counters(self) -> dict[str, int]: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
