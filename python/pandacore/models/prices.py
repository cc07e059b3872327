"""What calls cost, by a table of the user's: money is set aside before a call as tokens are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pandacore.errors import BudgetExceeded, UnknownPrice
from pandacore.models.budget import Reservation, TokenLedger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pandacore.models.types import Usage

__all__ = ["UNITS", "PricedLedger"]

UNITS: Final = 1_000_000_000
"""Money is counted in whole billionths of the currency, so that sums are exact."""


def _price(prices: Mapping[str, Sequence[float]], model: str) -> Sequence[float]:
    price = prices.get(model)
    if price is None:
        raise UnknownPrice(
            f"there is a cap on cost and no price for model {model!r}; priced: {', '.join(prices) or 'none'}",
            where="Budget.prices",
            hint=f'add prices={{"{model}": (PROMPT, COMPLETION)}}, per 1,000 tokens',
        )
    return price


class PricedLedger(TokenLedger):
    """A ledger of tokens that sets money aside as well, at the model's dearer rate.

    Parameters
    ----------
    tokens, cost : TokenLedger
        Where both count; ``cost`` in :data:`UNITS`.
    prices : mapping of str to (prompt, completion)
        Per 1,000 tokens of each model.
    model : str
        The model that is called.
    """

    __slots__ = ("_cost", "_model", "_prices", "_tokens")

    def __init__(
        self,
        tokens: TokenLedger,
        cost: TokenLedger,
        prices: Mapping[str, Sequence[float]],
        model: str = "",
    ) -> None:
        super().__init__(None, name="priced", parent=tokens)
        self._tokens = tokens
        self._cost = cost
        self._prices = prices
        self._model = model

    def of(self, model: str) -> PricedLedger:
        """The same for calls of one model."""
        return PricedLedger(self._tokens, self._cost, self._prices, model)

    @property
    def limit(self) -> int | None:
        """0 if nothing may be spent."""
        return 0 if 0 in (self._cost.limit, self._tokens.limit) else self._tokens.limit

    def reserve(self, tokens: int) -> Reservation:
        """As :meth:`TokenLedger.reserve`; also refused if the money would not do."""
        rate = max(_price(self._prices, self._model)) / 1000
        wanted = round(tokens * rate * UNITS)
        mine = super().reserve(tokens)
        try:
            money = self._cost.reserve(wanted)
        except BudgetExceeded as refused:
            mine.release()
            left = (self._cost.remaining or 0) / UNITS
            raise BudgetExceeded(
                f"{tokens} tokens of {self._model!r} may cost {wanted / UNITS:g}, {left:g} is left",
                kind="cost",
                limit=refused.limit / UNITS,
                used=refused.used / UNITS,
                asked=wanted / UNITS,
                where=refused.where,
                hint="raise the budget, or ask for fewer tokens (max_tokens)",
            ) from None
        return _Priced(mine, money, rate)

    def exact(self, usage: Usage) -> float:
        """Replace what a call was charged at the dearer rate by what it did cost, and answer that."""
        prompt, completion = _price(self._prices, self._model)
        cost = (usage.prompt_tokens * prompt + usage.completion_tokens * completion) / 1000
        charged = usage.total_tokens * max(prompt, completion) / 1000
        self._cost.reserve(0).adjust(round(cost * UNITS) - round(charged * UNITS))
        return cost


class _Priced(Reservation):
    """Tokens and money in one."""

    __slots__ = ("_money", "_rate", "_tokens")

    def __init__(self, tokens: Reservation, money: Reservation, rate: float) -> None:
        super().__init__(tokens._ledger, tokens.tokens)
        self._tokens = tokens
        self._money = money
        self._rate = rate

    def settle(self, actual: int) -> None:
        """As :meth:`Reservation.settle`."""
        self._tokens.settle(actual)
        self._money.settle(round(max(0, actual) * self._rate * UNITS))
        self._open = False
