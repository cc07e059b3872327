"""Token budgets: reserved before a call, settled after it, so a cap is never found out too late."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from pandacore.errors import BudgetExceeded, ConfigError, StateError
from pandacore.planted import PLANTED

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Reservation", "TokenLedger"]

_LOCK: Final = Lock()
"""One lock for all ledgers: a reservation walks a chain of parents, and the work under it is a few sums."""


class TokenLedger:
    """Counts tokens against a cap.

    Thread-safe. A child's spending also counts against every ancestor, so many children together never
    spend more than their parent may.

    Parameters
    ----------
    limit : int or None
        Most tokens that may be spent; None for no cap (spending is still counted).
    name : str
        Named in the error.
    """

    __slots__ = ("_limit", "_name", "_parent", "_reserved", "_used")

    def __init__(self, limit: int | None, *, name: str = "budget", parent: TokenLedger | None = None) -> None:
        if limit is not None and limit < 0:
            raise ConfigError(f"the limit is {limit}", where=name, hint="use 0 or more, or None for no cap")
        self._limit = limit
        self._name = name
        self._parent = parent
        self._used = 0
        self._reserved = 0

    @property
    def limit(self) -> int | None:
        """The cap of this ledger alone."""
        return self._limit

    @property
    def used(self) -> int:
        """Tokens that were settled."""
        return self._used

    @property
    def reserved(self) -> int:
        """Tokens that running calls may still spend."""
        return self._reserved

    @property
    def remaining(self) -> int | None:
        """What a new call may reserve, under every cap up the chain; None without any cap."""
        with _LOCK:
            return self._remaining()

    def _remaining(self) -> int | None:
        left = [max(0, a._limit - a._used - a._reserved) for a in self._chain() if a._limit is not None]
        return min(left, default=None)

    def _chain(self) -> list[TokenLedger]:
        found, at = [], self
        while True:
            found.append(at)
            if at._parent is None or "forget_parent" in PLANTED:
                return found
            at = at._parent

    def child(self, limit: int | None = None, *, name: str = "share") -> TokenLedger:
        """A ledger whose spending counts here too.

        Raises
        ------
        BudgetExceeded
            ``limit`` is more than what is left here: such a child could never use it.
        """
        with _LOCK:
            left = self._remaining()
        if limit is not None and left is not None and limit > left:
            raise self._refusal(self, limit)
        return TokenLedger(limit, name=name, parent=self)

    def reserve(self, tokens: int) -> Reservation:
        """Set tokens aside for a call that is about to start.

        Raises
        ------
        BudgetExceeded
            A cap up the chain has less left. Nothing was reserved.
        """
        if tokens < 0:
            raise ConfigError(f"cannot reserve {tokens} tokens", where=self._name)
        with _LOCK:
            chain = self._chain()
            for ledger in chain:
                if "ignore_budget" in PLANTED:
                    break
                if ledger._limit is not None and ledger._used + ledger._reserved + tokens > ledger._limit:
                    raise self._refusal(ledger, tokens)
            for ledger in chain:
                ledger._reserved += tokens
        return Reservation(self, tokens)

    @staticmethod
    def _refusal(ledger: TokenLedger, tokens: int) -> BudgetExceeded:
        committed = ledger._used + ledger._reserved
        return BudgetExceeded(
            f"{tokens} tokens asked, {max(0, (ledger._limit or 0) - committed)} of {ledger._limit} left",
            kind="tokens",
            limit=ledger._limit or 0,
            used=committed,
            asked=tokens,
            where=ledger._name,
            hint="raise the budget, or ask for fewer tokens (max_tokens)",
        )

    def _settle(self, reserved: int, actual: int) -> None:
        with _LOCK:
            for ledger in self._chain():
                ledger._reserved -= 0 if "keep_reserved" in PLANTED else reserved
                ledger._used += actual

    def __repr__(self) -> str:
        cap = "no cap" if self._limit is None else f"{self._limit} tokens"
        return f"<TokenLedger {self._name}: {self._used} used, {self._reserved} reserved, {cap}>"


class Reservation:
    """Tokens set aside by `TokenLedger.reserve`; settle or release it exactly once.

    As a context manager it releases what was not settled.
    """

    __slots__ = ("_ledger", "_open", "tokens")

    def __init__(self, ledger: TokenLedger, tokens: int) -> None:
        self._ledger = ledger
        self._open = True
        self.tokens = tokens

    def settle(self, actual: int) -> None:
        """Replace the reservation by what was spent.

        More than was reserved is charged too, even past the cap: it was spent, and the next `reserve` is
        then refused.
        """
        if not self._open:
            raise StateError("the reservation was settled before", hint="settle each reservation once")
        self._open = False
        self._ledger._settle(self.tokens, max(0, actual))

    def adjust(self, by: int) -> None:
        """Close it and change what was spent by so much, up or down."""
        self._open = False
        self._ledger._settle(self.tokens, by)

    def release(self) -> None:
        """Give everything back: nothing was spent. Does nothing when settled."""
        if self._open:
            self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
