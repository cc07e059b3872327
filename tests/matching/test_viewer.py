"""Several viewers of one registry, and late binding."""

from __future__ import annotations

import numpy as np
import pytest

from pandacore.errors import ShapeError, StateError, UnknownAgent
from pandacore.probing import LateBinding
from pandacore.registry import Registry, TeamSpec


def world(n: int) -> tuple[Registry, list[int]]:
    registry = Registry(seed=3)
    return registry, [registry.announce(n.to_bytes(32, "little"), ["a", "b"]) for n in range(n)]


@pytest.mark.parametrize("mode", ["dedicated", "consolidated"])
def test_viewers_of_one_registry_choose_among_those_they_trust(mode: str) -> None:
    registry, slots = world(20)
    alice, bob = registry.viewer(), registry.viewer()
    alice.set_trusted_many(slots[:5], [True] * 5)
    bob.set_trusted_many(np.array(slots, np.uint32), np.arange(20) >= 15)
    spec = registry.prepare(TeamSpec({"a": 3, "b": 1}, mode=mode))  # type: ignore[arg-type]
    for seed in range(20):
        assert set(alice.assemble(spec, seed=seed).slots.tolist()) <= set(slots[:5])
        assert set(bob.assemble(spec, seed=seed).slots.tolist()) <= set(slots[15:])
    assert (len(alice), len(bob)) == (5, 5)
    assert len(registry.assemble({"a": 20})) == 20, "the registry's own verdict is untouched"


def test_the_registrys_own_verdict_limits_every_viewer() -> None:
    registry, slots = world(4)
    viewer = registry.viewer()
    viewer.set_trusted_many(slots, [True] * 4)
    registry.set_trusted(slots[0], False)
    registry.set_alive(slots[1], False)
    team = viewer.assemble({"a": 4})
    assert set(team.slots.tolist()) == set(slots[2:])
    assert team.missing == {"a": 2}
    assert team.certificate is not None
    assert (team.certificate.wanted, team.certificate.available) == (4, 2)


def test_verdicts_change_and_name_agents_by_id_or_slot() -> None:
    registry, slots = world(2)
    viewer = registry.viewer()
    assert not viewer.trusts(slots[0])
    viewer.set_trusted((0).to_bytes(32, "little"), True)
    assert viewer.trusts(slots[0])
    assert viewer.trusts((0).to_bytes(32, "little"))
    viewer.set_trusted(slots[0], False)
    assert len(viewer) == 0
    with pytest.raises(UnknownAgent):
        viewer.set_trusted(b"\xff" * 32, True)
    with pytest.raises(UnknownAgent):
        viewer.set_trusted(99, True)
    with pytest.raises(ShapeError):
        viewer.set_trusted_many(slots, [True])
    other, _ = world(1)
    with pytest.raises(StateError, match="another registry"):
        viewer.assemble(other.prepare(["a"]))


def test_work_bound_late_goes_to_the_first_agent_that_is_free() -> None:
    work = LateBinding([4, 9, 2])
    assert work.queued == [2, 4, 9]
    assert work.claim(7) == (False, [])
    assert work.claim(9) == (True, [2, 4])
    assert work.claim(9) == (True, []), "a repeated claim is answered alike"
    assert work.claim(2) == (False, [])
    assert work.bound == 9
    assert work.lost(9) == [2, 4]
    assert work.claim(4) == (True, [2])
