"""Token ledgers."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore.errors import BudgetExceeded, ConfigError, StateError
from pandacore.models.budget import TokenLedger


def test_reserve_refuses_before_anything_is_spent() -> None:
    ledger = TokenLedger(100)
    ledger.reserve(60).settle(50)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.reserve(51)
    error = caught.value
    assert (error.kind, error.limit, error.used, error.asked) == ("tokens", 100, 50, 51)
    assert (ledger.used, ledger.reserved, ledger.remaining) == (50, 0, 50)
    assert pickle.loads(pickle.dumps(error)).asked == 51


def test_overrun_is_charged_and_blocks_the_next_call() -> None:
    ledger = TokenLedger(10)
    ledger.reserve(5).settle(30)
    assert (ledger.used, ledger.remaining) == (30, 0)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(1)


def test_child_counts_against_its_parent_and_cannot_be_larger() -> None:
    parent = TokenLedger(100)
    child = parent.child(40)
    child.reserve(40).settle(40)
    assert parent.used == 40
    with pytest.raises(BudgetExceeded):
        child.reserve(1)
    with pytest.raises(BudgetExceeded):
        parent.child(61)
    open_child = parent.child()
    with pytest.raises(BudgetExceeded):
        open_child.reserve(61)
    assert open_child.remaining == 60


def test_no_cap_still_counts() -> None:
    ledger = TokenLedger(None)
    ledger.reserve(10**9).settle(7)
    assert (ledger.used, ledger.remaining) == (7, None)


def test_reservation_is_settled_once_and_released_on_exit() -> None:
    ledger = TokenLedger(10)
    with ledger.reserve(10):
        assert ledger.remaining == 0
    assert ledger.remaining == 10
    reservation = ledger.reserve(3)
    reservation.settle(2)
    reservation.release()
    with pytest.raises(StateError):
        reservation.settle(1)


def test_bad_arguments_are_refused() -> None:
    for make in (lambda: TokenLedger(-1), lambda: TokenLedger(1).reserve(-1)):
        with pytest.raises(ConfigError):
            make()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(0, 500))
def test_settled_and_reserved_never_pass_the_cap_while_calls_keep_to_it(
    calls: list[tuple[int, int]], limit: int
) -> None:
    ledger = TokenLedger(limit)
    for asked, spent in calls:
        try:
            reservation = ledger.reserve(asked)
        except BudgetExceeded:
            assert ledger.used + asked > limit
            continue
        reservation.settle(min(asked, spent))
        assert ledger.used <= limit
    assert ledger.reserved == 0


def test_threads_share_a_cap_exactly() -> None:
    ledger = TokenLedger(1_000)
    children = [ledger.child() for _ in range(8)]

    def spend(child: TokenLedger) -> int:
        granted = 0
        for _ in range(1_000):
            try:
                child.reserve(1).settle(1)
            except BudgetExceeded:
                continue
            granted += 1
        return granted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, children)) == 1_000
    assert (ledger.used, ledger.reserved) == (1_000, 0)
