from collections.abc import Iterator, Sequence
from typing import Final, Literal, NoReturn, Self, final

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

def verify_signature(public: bytes, message: bytes, signature: bytes) -> bool: ...
def did_of(public: bytes) -> str: ...
def parse_did(text: str) -> bytes: ...

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
    def __new__(cls, *, seed: int = 0, signatures: bool = True, trust_by_default: bool = True) -> Self: ...
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
    def memory(self) -> dict[str, int]:
        """Bytes in use, by part."""

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
