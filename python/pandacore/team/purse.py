"""What a run may spend: tokens and money, in all and by each agent, set aside before each execution."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.models.budget import TokenLedger
from pandacore.models.prices import UNITS, PricedLedger

if TYPE_CHECKING:
    from pandacore.models.budget import Reservation
    from pandacore.models.types import Usage
    from pandacore.task import Budget

__all__ = ["Purse", "Share", "share_ledger"]

MAX_AGENTS: Final = 100_000
"""Agents of one run whose spending is kept apart; the run's own caps hold for all."""


def share_ledger(tokens: int | None, cost: float, prices_json: str, name: str) -> TokenLedger:
    """The ledger of an execution, where it happens; without prices cost is not capped."""
    ledger = TokenLedger(tokens, name=name)
    if not prices_json:
        return ledger
    return PricedLedger(ledger, TokenLedger(round(cost * UNITS), name=name), json.loads(prices_json))


class Share:
    """What one execution may spend; settled once, by what it did spend. None: no cap."""

    __slots__ = ("_cost", "_tokens", "cost", "tokens")

    def __init__(self, tokens: Reservation | None, cost: Reservation | None) -> None:
        self._tokens = tokens
        self._cost = cost
        self.tokens = None if tokens is None else tokens.tokens
        self.cost = None if cost is None else cost.tokens / UNITS

    def settle(self, usage: Usage) -> None:
        """Give back what was not spent."""
        if self._tokens is not None:
            self._tokens.settle(usage.total_tokens)
        if self._cost is not None:
            self._cost.settle(round(usage.cost * UNITS))


_FREE: Final = Share(None, None)


class _Account:
    """One agent's part of the run: its ledgers are children of the run's."""

    def __init__(self, purse: Purse) -> None:
        budget = purse.budget
        self.tokens = TokenLedger(budget.agent_tokens, name="Budget.agent_tokens", parent=purse.tokens)
        cap = None if budget.agent_cost is None else round(budget.agent_cost * UNITS)
        self.cost = TokenLedger(cap, name="Budget.agent_cost", parent=purse.cost)
        self.steps = 0


class Purse:
    """The ledgers of one run.

    Parameters
    ----------
    budget : Budget
        The caps.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.tokens = TokenLedger(budget.tokens, name="Budget.tokens")
        self.cost = TokenLedger(
            None if budget.cost is None else round(budget.cost * UNITS), name="Budget.cost"
        )
        self.capped_tokens = budget.tokens is not None or budget.agent_tokens is not None
        self.capped_cost = budget.cost is not None or budget.agent_cost is not None
        self.capped = self.capped_tokens or self.capped_cost or budget.agent_steps is not None
        self._accounts: dict[bytes, _Account] = {}

    def charge(self, usage: Usage) -> None:
        """Count what was spent without a share, such as in an earlier life of the run."""
        self.tokens.reserve(0).settle(usage.total_tokens)
        self.cost.reserve(0).settle(round(usage.cost * UNITS))

    def ledger(self) -> TokenLedger:
        """For calls of the run itself, such as planning."""
        return PricedLedger(self.tokens, self.cost, self.budget.prices) if self.capped_cost else self.tokens

    def affords(self, agent_id: bytes) -> bool:
        """Whether the agent may begin something more."""
        account = self._accounts.get(agent_id) if self.capped else None
        return account is None or self._spent_up(account) is None

    def take(self, agent_id: bytes, sharers: int, *, step: bool = True) -> Share:
        """Set aside an equal share of what is left, for one more execution by an agent.

        ``step`` False: it is no execution of a subtask, but planning.

        Raises
        ------
        BudgetExceeded
            A cap of this agent is used up; another one may go on.
        """
        if not self.capped:
            return _FREE
        account = self._accounts.get(agent_id)
        if account is None:
            account = _Account(self)
            if len(self._accounts) < MAX_AGENTS:
                self._accounts[agent_id] = account
        if (error := self._spent_up(account)) is not None:
            raise error
        account.steps += step
        tokens = cost = None
        if self.capped_tokens:
            tokens = account.tokens.reserve(self._part(self.tokens, account.tokens, sharers))
        if self.capped_cost:
            cost = account.cost.reserve(self._part(self.cost, account.cost, sharers))
        return Share(tokens, cost)

    @staticmethod
    def _part(whole: TokenLedger, own: TokenLedger, sharers: int) -> int:
        left, mine = whole.remaining, own.remaining
        parts = [p for p in (None if left is None else left // max(sharers, 1), mine) if p is not None]
        return min(parts, default=0)

    def _spent_up(self, account: _Account) -> errors.BudgetExceeded | None:
        budget = self.budget
        if budget.agent_steps is not None and account.steps >= budget.agent_steps:
            return _agent_cap("agent_steps", budget.agent_steps, account.steps)
        for name, limit, ledger in (
            ("agent_tokens", budget.agent_tokens, account.tokens),
            ("agent_cost", budget.agent_cost, account.cost),
        ):
            if (
                limit is not None
                and ledger.limit is not None
                and ledger.used + ledger.reserved >= ledger.limit
            ):
                return _agent_cap(name, limit, limit)
        return None


def _agent_cap(name: str, limit: float, used: float) -> errors.BudgetExceeded:
    return errors.BudgetExceeded(
        f"the agent has used up its {name.removeprefix('agent_')} of this run: {used} of {limit}",
        kind=name,
        limit=limit,
        used=used,
        where=f"Budget.{name}",
        hint=f"raise Budget({name}=…), or add agents with the same capability",
    )
