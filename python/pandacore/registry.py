"""The registry of agents and the assembly of teams.

Usable alone, without a collective:

>>> from pandacore.registry import Registry
>>> registry = Registry(seed=1)
>>> for n, capability in enumerate(["search.web", "search.files", "reason.math"]):
...     _ = registry.announce(bytes([n]) * 32, [capability])
>>> team = registry.assemble({"search": 2, "reason.math": 1})
>>> team.complete, len(team)
(True, 3)
>>> registry.assemble({"search": 3}).missing
{'search': 1}
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np

from pandacore._core import (
    AgentRecord,
    Capability,
    Certificate,
    Member,
    PreparedSpec,
    RegistryCore,
    RestoredRegistry,
    Team,
    ViewerCore,
)
from pandacore.errors import ConfigError, CorruptFile, ShapeError, UnknownAgent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = [
    "NO_AGENT",
    "AgentRecord",
    "Capability",
    "Certificate",
    "Member",
    "PreparedSpec",
    "Registry",
    "Resolver",
    "Team",
    "TeamBatch",
    "TeamSpec",
    "Viewer",
]

Mode = Literal["dedicated", "consolidated"]
Quality = Literal["fast", "best", "optimal"]

NO_AGENT = 0xFFFF_FFFF
"""Fills the places of a :class:`TeamBatch` for which no agent was found."""

_T = TypeVar("_T", bound=np.generic)


class Resolver(Protocol):
    """Turns a requirement that is no known capability into capability names, any of which satisfies it.

    Semantic matching is one of these; an empty answer means that nobody can serve it.
    """

    def resolve(self, requirement: str, registry: Registry) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class TeamSpec:
    """What a team must be able to do.

    Parameters
    ----------
    required : mapping of str to int, or sequence of str
        Agents wanted per capability; a sequence wants one each, repetitions add up. At most 64 capabilities.
        ``search`` is satisfied by agents that announce ``search.web``.
    mode : "dedicated" or "consolidated"
        Different agents for every capability, or as few agents as possible.
    probes : int
        Candidates looked at per capability (8, 16 or 32). More give a better balance and cost more.
    quality : "fast", "best" or "optimal"
        Dedicated: sampled candidates, or the least total score. Consolidated: one search, the best of
        several, or an exact search with a bound on its steps (``team.optimal`` says whether it came to an
        end). The answer is complete at every quality: a team is refused only if no valid one exists.
        (Consolidated teams with a domain or cost cap are searched up to the same bound.)
    domain_cap : int, optional
        At most so many members of one domain; agents of domain 0 have none and are not counted.
    cost_cap : int, optional
        Upper bound of the sum of the members' costs.
    tags : collection of str
        Tags that every member must have.
    exclude, must_include : collection of bytes
        Agent ids that must not, or must, be members.
    """

    required: Mapping[str, int]
    mode: Mode = field(default="dedicated", kw_only=True)
    probes: int = field(default=16, kw_only=True)
    quality: Quality = field(default="fast", kw_only=True)
    domain_cap: int | None = field(default=None, kw_only=True)
    cost_cap: int | None = field(default=None, kw_only=True)
    tags: Collection[str] = field(default=(), kw_only=True)
    exclude: Collection[bytes] = field(default=(), kw_only=True)
    must_include: Collection[bytes] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", MappingProxyType(_required(self.required)))
        for name in ("tags", "exclude", "must_include"):
            value = getattr(self, name)
            if isinstance(value, (str, bytes)):
                raise ConfigError(
                    f"{name} is one {type(value).__name__}, not a collection of them", where=name
                )
            object.__setattr__(self, name, tuple(value))
        if self.mode not in ("dedicated", "consolidated"):
            raise ConfigError(f"mode is {self.mode!r}; it can be 'dedicated' or 'consolidated'", where="mode")
        if self.quality not in ("fast", "best", "optimal"):
            raise ConfigError(
                f"quality is {self.quality!r}; it can be 'fast', 'best' or 'optimal'", where="quality"
            )
        if self.probes not in (8, 16, 32):
            raise ConfigError(f"probes is {self.probes!r}; it can be 8, 16 or 32", where="probes")
        for name in ("domain_cap", "cost_cap"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < 0):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number from 0", where=name)


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _required(required: Mapping[str, int] | Sequence[str] | Sequence[Capability]) -> dict[str, int]:
    if isinstance(required, (str, bytes)):
        raise ConfigError(
            "required is one name, not a collection of them", where="required", hint=f"pass [{required!r}]"
        )
    pairs: Iterable[tuple[str | Capability, int]]
    pairs = required.items() if isinstance(required, Mapping) else ((name, 1) for name in required)
    counts: dict[str, int] = {}
    for name, count in pairs:
        if not isinstance(name, (str, Capability)):
            raise ConfigError(
                f"a capability is {name!r}; it must be a name or a Capability", where="required"
            )
        if not _is_int(count) or count < 0:
            raise ConfigError(f"{name} wants {count!r} agents; it must be a whole number", where="required")
        counts[str(name)] = counts.get(str(name), 0) + int(count)
    return counts


class TeamBatch(NamedTuple):
    """Teams of :meth:`Registry.assemble_many`."""

    slots: NDArray[np.uint32]
    """uint32, shape (n_teams, n_capabilities * per_capability): slots in the order of the row's capabilities;
    ``NO_AGENT`` where none was found."""
    complete: NDArray[np.bool_]
    """bool, shape (n_teams,)"""


class Registry(RegistryCore):
    """Every agent that this process knows, indexed by capability.

    Parameters
    ----------
    seed : int
        Seed of every random choice. Equal calls on equal registries give equal teams.
    signatures : bool
        Keep 8 more bytes per agent and capability, which make consolidated assembly fast.
    trust_by_default : bool
        Whether a newly announced agent is trusted until ``set_trusted`` says otherwise.
    resolver : Resolver, optional
        Asked about requirements whose name is no known capability.

    Notes
    -----
    Safe to use from several threads. Calls for one agent take well under a microsecond to a few; those for
    many (``announce_many``, ``set_loads``, ``assemble_many``, ...) let other Python threads run, and assembly
    never waits for them.
    """

    _resolver: Resolver | None

    def __new__(
        cls,
        *,
        seed: int = 0,
        signatures: bool = True,
        trust_by_default: bool = True,
        resolver: Resolver | None = None,
        restored: RestoredRegistry | None = None,
    ) -> Self:
        if not _is_int(seed) or not 0 <= seed < 2**64:
            raise ConfigError(f"seed is {seed!r}; it must be a whole number of at most 64 bits", where="seed")
        self = super().__new__(
            cls, seed=int(seed), signatures=signatures, trust_by_default=trust_by_default, restored=restored
        )
        self._resolver = resolver
        return self

    def announce_many(
        self,
        ids: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        capabilities: ArrayLike,
        *,
        versions: ArrayLike | None = None,
        loads: ArrayLike | None = None,
        domains: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        service_s: ArrayLike | None = None,
        rtt_s: ArrayLike | None = None,
        concurrency: ArrayLike | None = None,
        alive: ArrayLike | None = None,
        trusted: ArrayLike | None = None,
    ) -> NDArray[np.uint32]:
        """Announce many agents at once.

        Parameters
        ----------
        ids : uint8, shape (n, 32)
            Public keys, all different.
        offsets : int64, shape (n + 1,)
            Agent ``i`` has ``capabilities[offsets[i]:offsets[i + 1]]``.
        capabilities : uint32, shape (offsets[-1],)
            Handles: ``registry.capability(name).index``.
        versions, loads, domains, costs, service_s, rtt_s, concurrency, alive, trusted : shape (n,), optional
            As in ``announce``, ``set_alive`` and ``set_trusted``.

        Returns
        -------
        uint32, shape (n,)
            The slot of each agent.

        Raises
        ------
        ShapeError
            A column has the wrong type, dimension or length.
        DuplicateId
            One id occurs twice; the message names the rows.
        UnknownCapability
            A handle is not one of this registry.

        Notes
        -----
        All or nothing: after an error the registry is as before. Rows whose version is not newer than what is
        known change nothing.
        """
        return self.announce_columns(
            _column("ids", ids, np.uint8, 2, width=32),
            _column("offsets", offsets, np.int64),
            _column("capabilities", capabilities, np.uint32),
            versions=_optional("versions", versions, np.uint64),
            loads=_optional("loads", loads, np.uint16),
            domains=_optional("domains", domains, np.uint16),
            costs=_optional("costs", costs, np.uint16),
            services=_seconds("service_s", service_s),
            rtts=_seconds("rtt_s", rtt_s),
            concurrency=_optional("concurrency", concurrency, np.uint8),
            alive=_optional("alive", alive, np.bool_),
            trusted=_optional("trusted", trusted, np.bool_),
        )

    def set_loads(self, slots: ArrayLike, loads: ArrayLike) -> None:
        """Set the load of many agents.

        Parameters
        ----------
        slots, loads : uint32 and uint16, same length
            The later of two updates of one slot wins.

        Raises
        ------
        UnknownAgent
            A slot holds no agent; nothing changed then.
        """
        self.set_load_columns(_column("slots", slots, np.uint32), _column("loads", loads, np.uint16))

    def set_flags(
        self, flag: Literal["alive", "trusted", "draining"], slots: ArrayLike, values: ArrayLike
    ) -> None:
        """Set whether many agents are alive, trusted or draining; shapes and errors as in ``set_loads``."""
        self.set_flag_columns(flag, _column("slots", slots, np.uint32), _column("values", values, np.bool_))

    def set_trusted_bitmap(self, trusted: ArrayLike) -> None:
        """Trust exactly the agents whose slot is true.

        Parameters
        ----------
        trusted : bool, indexed by slot; or uint64 words, bit ``slot % 64`` of word ``slot // 64``
            Slots beyond its end are not trusted.
        """
        self.set_trusted_words(_bitmap(trusted))

    def prepare(self, spec: TeamSpec | Mapping[str, int] | Sequence[str]) -> PreparedSpec:
        """Resolve a specification once, for many assemblies.

        Names that are unknown now are looked up again when the vocabulary has grown; agents named in
        ``exclude`` and ``must_include`` at each assembly.
        """
        if not isinstance(spec, TeamSpec):
            spec = TeamSpec(_required(spec))
        resolver = self._resolver
        required: list[tuple[list[str], int]] = []
        for name, count in spec.required.items():
            names = [name]
            if resolver is not None and self.available(name) == 0 and not self.holders(name):
                names += [other for other in resolver.resolve(name, self) if other != name]
            required.append((names, count))
        return self.prepare_spec(
            required,
            mode=spec.mode,
            quality=spec.quality,
            probes=spec.probes,
            domain_cap=spec.domain_cap,
            cost_cap=spec.cost_cap,
            tags=list(spec.tags),
            exclude=[bytes(agent) for agent in spec.exclude],
            must_include=[bytes(agent) for agent in spec.must_include],
        )

    def assemble(
        self,
        spec: PreparedSpec | TeamSpec | Mapping[str, int] | Sequence[str],
        *,
        mode: Mode | None = None,
        seed: int | None = None,
        trusted: ArrayLike | Iterable[bytes] | None = None,
        exclude: Collection[bytes] = (),
    ) -> Team:
        """Assemble a team.

        Parameters
        ----------
        spec : PreparedSpec, TeamSpec, mapping or sequence
            What is needed. A prepared specification is the fast way for repeated requests.
        mode : "dedicated" or "consolidated", optional
            Instead of the specification's.
        seed : int, optional
            Seed of the choice among equals and of the sample; absent: the next of the registry's own stream.
        trusted : bool by slot, uint64 words, or ids; optional
            A further restriction for this call, as in ``set_trusted_bitmap``.
        exclude : collection of bytes
            Ids that must not be members, besides the specification's.

        Returns
        -------
        Team
            Complete or not: ``team.complete``, ``team.missing`` and ``team.certificate`` tell. An incomplete
            team is as large as possible.
        """
        if isinstance(spec, PreparedSpec):
            if mode is not None or exclude:
                raise ConfigError(
                    "a prepared specification has its mode and exclusions already",
                    where="spec",
                    hint="prepare another one, or pass the TeamSpec",
                )
            if trusted is None:
                return self.assemble_prepared(spec, seed)
            return self.assemble_prepared(spec, seed, self._trusted(trusted))
        if not isinstance(spec, TeamSpec):
            spec = TeamSpec(_required(spec), mode=mode or "dedicated", exclude=exclude)
        elif mode is not None or exclude:
            spec = TeamSpec(
                spec.required,
                mode=mode or spec.mode,
                probes=spec.probes,
                quality=spec.quality,
                domain_cap=spec.domain_cap,
                cost_cap=spec.cost_cap,
                tags=spec.tags,
                exclude=(*spec.exclude, *exclude),
                must_include=spec.must_include,
            )
        words = None if trusted is None else self._trusted(trusted)
        return self.assemble_prepared(self.prepare(spec), seed, words)

    def assemble_many(
        self,
        capabilities: ArrayLike,
        *,
        per_capability: int = 1,
        probes: int = 16,
        seed: int | None = None,
    ) -> TeamBatch:
        """Assemble one dedicated team per row.

        Parameters
        ----------
        capabilities : uint32, shape (n_teams, n_capabilities)
            Handles: ``registry.capability(name).index``.
        per_capability : int
            Agents wanted for each.
        probes, seed
            As in :class:`TeamSpec` and :meth:`assemble`.

        Returns
        -------
        TeamBatch
            Slots and completeness of each team. Teams know nothing of each other: an agent may be in several.
        """
        if probes not in (8, 16, 32):
            raise ConfigError(f"probes is {probes!r}; it can be 8, 16 or 32", where="probes")
        if not _is_int(per_capability) or per_capability < 0:
            raise ConfigError(f"per_capability is {per_capability!r}; it must be a whole number from 0")
        rows = _column("capabilities", capabilities, np.uint32, 2)
        slots, complete = self.assemble_rows(rows, int(per_capability), probes, seed)
        return TeamBatch(slots, complete)

    def viewer(self) -> Viewer:
        """A further viewer of this registry, with its own verdict on every agent.

        >>> registry = Registry()
        >>> slots = [registry.announce(bytes([n]) * 32, ["search"]) for n in range(3)]
        >>> alice, bob = registry.viewer(), registry.viewer()
        >>> alice.set_trusted(slots[0], True)
        >>> [len(v.assemble({"search": 1})) for v in (alice, bob)]
        [1, 0]
        """
        return Viewer(self)

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write everything known to a file: agents, versions, loads, flags, names and tombstones.

        The file appears whole or not at all, and is on the disk when this returns. Every part has a checksum.
        """
        target = Path(path)
        data = self.snapshot_bytes()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @classmethod
    def restore(cls, path: str | os.PathLike[str], *, resolver: Resolver | None = None) -> Self:
        """A registry as it was at a :meth:`snapshot`; only slots may differ.

        Raises
        ------
        CorruptFile
            The file is damaged, cut off, or no snapshot; ``where`` is its path.
        """
        data = Path(path).read_bytes()
        try:
            restored = cls.restore_bytes(data)
        except CorruptFile as error:
            hint = "restore an older snapshot, or start empty and let announcements come in"
            raise CorruptFile(error.message, where=str(path), hint=hint) from None
        return cls(restored=restored, resolver=resolver)

    def _trusted(self, trusted: ArrayLike | Iterable[bytes]) -> NDArray[np.uint64]:
        if isinstance(trusted, np.ndarray):
            return _bitmap(trusted)
        agents = list(cast("Iterable[object]", trusted))
        if not all(isinstance(agent, bytes) for agent in agents):
            return _bitmap(np.asarray(agents))
        mask = np.zeros(self.slots, np.bool_)
        for agent in cast("list[bytes]", agents):
            slot = self.slot_of(agent)
            if slot is not None:
                mask[slot] = True
        return _bitmap(mask)

    def __repr__(self) -> str:
        return f"<Registry: {len(self)} agents, {len(self.capabilities())} capabilities>"


class Viewer(ViewerCore):
    """One of several viewers of a registry, with its own verdict on every agent: :meth:`Registry.viewer`.

    An agent can be a member if the registry's own ``trusted`` flag is set and the viewer trusts it; a new
    viewer trusts nobody. A verdict is about the agent, not its slot: a slot that goes to another agent is not
    trusted. ``len(viewer)`` is how many agents it trusts. One bit per slot; safe to use from several threads.
    """

    _registry: Registry

    def __new__(cls, registry: Registry) -> Self:
        self = super().__new__(cls, registry)
        self._registry = registry
        return self

    def set_trusted(self, agent: bytes | int, trusted: bool) -> None:
        """Give a verdict on one agent, by its id or slot; ``UnknownAgent`` if there is none."""
        slots = np.array([self._slot(agent)], np.uint32)
        self.set_trusted_columns(slots, np.array([trusted], np.bool_))

    def set_trusted_many(self, slots: ArrayLike, values: ArrayLike) -> None:
        """Give verdicts on many agents; shapes and errors as in :meth:`Registry.set_loads`."""
        self.set_trusted_columns(_column("slots", slots, np.uint32), _column("values", values, np.bool_))

    def trusts(self, agent: bytes | int) -> bool:
        """Whether this viewer trusts an agent; ``UnknownAgent`` if there is none."""
        return self.trusts_slot(self._slot(agent))

    def assemble(
        self, spec: PreparedSpec | TeamSpec | Mapping[str, int] | Sequence[str], *, seed: int | None = None
    ) -> Team:
        """Assemble a team of agents that this viewer trusts, as :meth:`Registry.assemble` does."""
        if not isinstance(spec, PreparedSpec):
            spec = self._registry.prepare(spec)
        return self.assemble_prepared(spec, seed)

    def _slot(self, agent: bytes | int) -> int:
        if not isinstance(agent, bytes):
            return agent
        slot = self._registry.slot_of(agent)
        if slot is None:
            raise UnknownAgent(f"no agent has the id {agent.hex()[:16]}…")
        return slot


def _column(
    name: str, values: ArrayLike, dtype: type[_T], ndim: int = 1, *, width: int | None = None
) -> NDArray[_T]:
    """The values as a contiguous array of ``dtype``, without changing any of them."""
    array = np.asarray(values)
    if array.ndim != ndim:
        raise ShapeError(f"{name} has {array.ndim} dimensions; it needs {ndim}", where=name)
    if width is not None and array.shape[1] != width:
        raise ShapeError(f"{name} has {array.shape[1]} columns; it needs {width}", where=name)
    if array.dtype != dtype:
        array = _cast(name, array, dtype)
    return np.ascontiguousarray(array)


def _cast(name: str, array: NDArray[np.generic], dtype: DTypeLike) -> NDArray[np.generic]:
    wanted = np.dtype(dtype)
    if array.size == 0:
        return array.astype(wanted)
    if wanted.kind == "f" and array.dtype.kind in "fiu":
        return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(wanted)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise ShapeError(
                f"{name} has values from {low} to {high}; {wanted} holds {limits.min} to {limits.max}",
                where=name,
            )
        return array.astype(wanted)
    raise ShapeError(f"{name} has dtype {array.dtype}; it needs {wanted}", where=name)


def _optional(name: str, values: ArrayLike | None, dtype: type[_T]) -> NDArray[_T] | None:
    return None if values is None else _column(name, values, dtype)


def _seconds(name: str, values: ArrayLike | None) -> NDArray[np.float64] | None:
    column = _optional(name, values, np.float64)
    if column is not None:
        bad = np.flatnonzero(~np.isfinite(column) | (column < 0))
        if bad.size:
            raise ConfigError(
                f"row {int(bad[0])} is {column[bad[0]]}; seconds are finite and not negative", where=name
            )
    return column


def _bitmap(trusted: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(trusted)
    if array.ndim == 1 and array.dtype == np.uint64:
        return np.ascontiguousarray(array)
    if array.ndim == 1 and (array.dtype == np.bool_ or array.size == 0):
        packed = np.packbits(array.astype(np.bool_), bitorder="little")
        padded = np.zeros(-(-packed.size // 8) * 8, np.uint8)
        padded[: packed.size] = packed
        return padded.view("<u8").astype(np.uint64)
    raise ShapeError(
        f"trusted has dtype {array.dtype} and {array.ndim} dimensions; it needs bool by slot or uint64 words",
        where="trusted",
    )
