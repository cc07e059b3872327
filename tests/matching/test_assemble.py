"""Team assembly through Python."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandacore.errors import ConfigError, ShapeError, UnknownAgent
from pandacore.registry import Registry, TeamSpec


def agent(n: int) -> bytes:
    return n.to_bytes(32, "little")


def world(*agents: str, loads: Sequence[int] | None = None) -> Registry:
    """A registry of agents given as strings of one-letter capabilities."""
    registry = Registry(seed=1)
    for n, held in enumerate(agents):
        registry.announce(agent(n), list(held), load=loads[n] if loads else 0)
    return registry


def chosen(registry: Registry, spec: object, **options: object) -> list[int]:
    team = registry.assemble(spec, **options)  # type: ignore[arg-type]
    return [int.from_bytes(m.agent_id, "little") for m in team.members]


def test_scarce_capabilities_are_served_first() -> None:
    registry = world("ab", "a", "b")
    for seed in range(20):
        team = registry.assemble({"a": 2, "b": 1}, seed=seed)
        assert team.complete
        assert {m.agent_id for m in team.members} == {agent(0), agent(1), agent(2)}


def test_refusal_names_what_is_missing_and_proves_it() -> None:
    registry = world("ab", "ab", "c", "c", "c")
    team = registry.assemble({"a": 2, "b": 1, "c": 1})
    assert not team.complete
    assert team.reason == "agents"
    assert sum(team.missing.values()) == 1
    assert len(team) == 3
    assert team.certificate is not None
    assert set(team.certificate.capabilities) == {"a", "b"}
    assert (team.certificate.wanted, team.certificate.available, team.certificate.short) == (3, 2, 1)
    assert "missing" in repr(team)


def test_least_loaded_members_are_taken() -> None:
    registry = world(*["a"] * 6, loads=[5, 0, 9, 1, 7, 3])
    assert sorted(chosen(registry, {"a": 3})) == [1, 3, 5]
    registry.set_load(agent(1), 50)
    assert sorted(chosen(registry, {"a": 3})) == [0, 3, 5]
    loads = {m.agent_id: m.load for m in registry.assemble({"a": 3}).members}
    assert loads == {agent(0): 5, agent(3): 1, agent(5): 3}


def test_consolidated_takes_the_fewest() -> None:
    registry = world("a", "b", "c", "abc", "ab")
    team = registry.assemble(TeamSpec({"a": 1, "b": 1, "c": 1}, mode="consolidated", quality="optimal"))
    assert [m.agent_id for m in team.members] == [agent(3)]
    assert team.members[0].capabilities == ("a", "b", "c")
    assert team.optimal
    assert team.lower_bound == 1
    team = registry.assemble(["a", "b", "c"], mode="consolidated", exclude=[agent(3)])
    assert sorted(int.from_bytes(m.agent_id, "little") for m in team.members) == [2, 4]


def test_constraints_hold() -> None:
    registry = Registry()
    for n in range(8):
        registry.announce(agent(n), ["a"], domain=1 + n % 2, cost=n, tags=["big"] if n >= 4 else [])
    assert len(registry.assemble(TeamSpec({"a": 4}, domain_cap=2))) == 4
    team = registry.assemble(TeamSpec({"a": 5}, domain_cap=2))
    assert team.missing == {"a": 1}
    assert chosen(registry, TeamSpec({"a": 3}, cost_cap=3)) == [0, 1, 2]
    team = registry.assemble(TeamSpec({"a": 3}, cost_cap=2))
    assert team.reason == "cost"
    assert len(team) == 2
    assert set(chosen(registry, TeamSpec({"a": 4}, tags=["big"]))) == {4, 5, 6, 7}
    assert registry.assemble(TeamSpec({"a": 1}, tags=["small"])).missing == {"a": 1}
    assert 6 in chosen(registry, TeamSpec({"a": 1}, must_include=[agent(6)]))
    team = registry.assemble(TeamSpec({"a": 1}, must_include=[agent(6), agent(7)]))
    assert team.reason == "must_include"
    with pytest.raises(UnknownAgent):
        registry.assemble(TeamSpec({"a": 1}, must_include=[agent(99)]))
    assert chosen(registry, {"a": 8}, exclude=[agent(99)])


def test_trusted_restricts_one_call() -> None:
    registry = world("a", "a", "a")
    assert chosen(registry, ["a"], trusted=[agent(2)]) == [2]
    assert chosen(registry, ["a"], trusted=np.array([False, True, False])) == [1]
    assert chosen(registry, ["a"], trusted=np.array([1], np.uint64)) == [0]
    assert registry.assemble(["a"], trusted=[]).missing == {"a": 1}
    assert registry.assemble(registry.prepare(["a"]), trusted=[agent(1)]).complete
    with pytest.raises(ShapeError):
        registry.assemble(["a"], trusted=np.array([0.5]))


def test_same_seed_same_team_in_equal_registries() -> None:
    teams = []
    for _ in range(2):
        registry = world(*["abc", "ab", "bc", "ac"] * 20)
        first = [registry.assemble({"a": 2, "b": 2, "c": 2}).slots.tolist() for _ in range(5)]
        teams.append((first, registry.assemble({"a": 2, "b": 1}, seed=9).slots.tolist()))
    assert teams[0] == teams[1]
    assert len({tuple(t) for t in teams[0][0]}) > 1


def test_prepared_specification_follows_the_registry() -> None:
    registry = world("a")
    spec = registry.prepare(TeamSpec({"later": 1}, exclude=[agent(5)]))
    assert not spec.assemble().complete
    registry.announce(agent(5), ["later"])
    assert not spec.assemble().complete
    registry.announce(agent(6), ["later"])
    assert spec.assemble().members[0].agent_id == agent(6)
    assert spec.wanted == 1
    with pytest.raises(ConfigError):
        registry.assemble(spec, mode="consolidated")


def test_resolver_is_asked_about_unknown_names_only() -> None:
    asked = []

    class Synonyms:
        def resolve(self, requirement: str, registry: Registry) -> Sequence[str]:
            asked.append(requirement)
            return {"lookup": ["search", "find"]}.get(requirement, [])

    registry = Registry(resolver=Synonyms())
    registry.announce(agent(1), ["search"])
    registry.announce(agent(2), ["find"])
    team = registry.assemble({"lookup": 2, "search": 0})
    assert team.complete
    assert {m.capability for m in team.members} == {"lookup|search|find"}
    assert registry.assemble(["nothing"]).missing == {"nothing": 1}
    assert asked == ["lookup", "nothing"]


def test_members_are_kept_as_they_were_when_looked_at() -> None:
    registry = world("a")
    team = registry.assemble(["a"])
    registry.withdraw(agent(0))
    assert team.members[0].agent_id == agent(0)
    assert team.members is team.members
    with pytest.raises(TypeError):
        bool(team)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "both"}, ConfigError),
        ({"quality": "good"}, ConfigError),
        ({"probes": 3}, ConfigError),
        ({"domain_cap": -1}, ConfigError),
        ({"cost_cap": 1.5}, ConfigError),
        ({"exclude": b"x" * 32}, ConfigError),
        ({"exclude": [b"short"]}, ShapeError),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], error: type[Exception]) -> None:
    registry = world("a")
    with pytest.raises(error):
        registry.assemble(TeamSpec({"a": 1}, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("required", ["a", b"a", {"a": -1}, {"a": 1.5}, {"a": True}, {1: 1}, [None]])
def test_wrong_requirements_are_refused(required: object) -> None:
    with pytest.raises(ConfigError):
        world("a").assemble(required)  # type: ignore[arg-type]


def test_limits_are_refused_with_their_number() -> None:
    registry = world("a")
    with pytest.raises(ConfigError, match="64"):
        registry.assemble([f"c{n}" for n in range(65)])
    with pytest.raises(ConfigError, match="65536"):
        registry.assemble({"a": 70_000})
    assert registry.assemble({"a": 65_536}).missing == {"a": 65_535}


def brute_force(agents: list[frozenset[str]], wanted: list[str]) -> int:
    """Most slots served at once, by trying every order of agents on the slots."""
    best = 0
    for order in itertools.permutations(range(len(agents)), min(len(agents), len(wanted))):
        best = max(best, sum(w in agents[a] for w, a in zip(wanted, order, strict=False)))
    for names in itertools.permutations(wanted, min(len(agents), len(wanted))):
        best = max(best, sum(w in a for w, a in zip(names, agents, strict=False)))
    return best


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.frozensets(st.sampled_from("abcd")), max_size=5),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
def test_dedicated_teams_are_as_large_as_possible(
    agents: list[frozenset[str]], wanted: list[str], seed: int
) -> None:
    registry = world(*["".join(sorted(held)) for held in agents])
    team = registry.assemble(wanted, seed=seed)
    assert len(team) == brute_force(agents, wanted)
    for member in team.members:
        assert member.capability in agents[int.from_bytes(member.agent_id, "little")]
    assert team.complete == (len(team) == len(wanted))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.frozensets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=7),
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 2), min_size=1, max_size=4),
    st.sampled_from(["fast", "best", "optimal"]),
)
def test_consolidated_teams_are_complete_and_bounded(
    agents: list[frozenset[str]], wanted: dict[str, int], quality: str
) -> None:
    registry = world(*["".join(sorted(held)) for held in agents])
    spec = TeamSpec(wanted, mode="consolidated", quality=quality)  # type: ignore[arg-type]
    team = registry.assemble(spec)

    def serves(subset: Sequence[int]) -> bool:
        return all(sum(c in agents[a] for a in subset) >= n for c, n in wanted.items())

    sizes = [
        k for k in range(len(agents) + 1) for s in itertools.combinations(range(len(agents)), k) if serves(s)
    ]
    assert team.complete == bool(sizes)
    if sizes:
        chosen_agents = [int.from_bytes(m.agent_id, "little") for m in team.members]
        assert serves(chosen_agents)
        assert team.lower_bound <= sizes[0] <= len(chosen_agents)
        if team.optimal or quality == "optimal":
            assert len(chosen_agents) == sizes[0]
