"""A model as one subtask, or one planner, may use it: charged to a ledger and cut off at a deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pandacore.errors import BudgetExceeded, DeadlineExceeded
from pandacore.models.prices import PricedLedger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pandacore.models.budget import TokenLedger
    from pandacore.models.client import ModelClient
    from pandacore.models.types import (
        ChatDelta,
        ChatRequest,
        ChatResult,
        Document,
        Message,
        ModelInfo,
        Sampling,
        TokenCount,
        Usage,
    )

__all__ = ["BoundModel"]


class BoundModel:
    """The calls of :class:`~pandacore.models.client.ModelClient`, with the budget and deadline filled in.

    Parameters
    ----------
    client : ModelClient
    ledger : TokenLedger
        Every call reserves here first.
    remaining_s : callable
        Seconds until the deadline, or None if there is none.
    spent : callable
        Told the usage of every answer.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        ledger: TokenLedger,
        remaining_s: Callable[[], float | None],
        spent: Callable[[Usage], None],
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._remaining_s = remaining_s
        self._spent = spent

    @property
    def remaining_tokens(self) -> int | None:
        """Tokens that may still be reserved; None without a cap."""
        return self._ledger.remaining

    async def chat(self, request: ChatRequest, *, deadline_s: float | None = None) -> ChatResult:
        """See :meth:`ModelClient.chat`."""
        ledger = await self._priced(request.model)
        result = await self._client.chat(request, deadline_s=self._deadline_s(deadline_s), budget=ledger)
        return self._charged(result, ledger)

    async def chat_stream(
        self, request: ChatRequest, *, deadline_s: float | None = None
    ) -> AsyncGenerator[ChatDelta, None]:
        """See :meth:`ModelClient.chat_stream`."""
        from contextlib import aclosing

        ledger = await self._priced(request.model)
        stream = self._client.chat_stream(request, deadline_s=self._deadline_s(deadline_s), budget=ledger)
        async with aclosing(stream):
            async for delta in stream:
                whole = delta.result
                yield delta if whole is None else replace(delta, result=self._charged(whole, ledger))

    async def generate_json(
        self,
        messages: Sequence[Message] | str,
        schema: Mapping[str, Any],
        *,
        documents: Sequence[Document] = (),
        metadata: Mapping[str, str] | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        deadline_s: float | None = None,
    ) -> ChatResult:
        """See :meth:`ModelClient.generate_json`."""
        options: dict[str, Any] = {} if sampling is None else {"sampling": sampling}
        ledger = await self._priced("")
        result = await self._client.generate_json(
            messages,
            schema,
            documents=documents,
            metadata=metadata,
            max_tokens=max_tokens,
            deadline_s=self._deadline_s(deadline_s),
            budget=ledger,
            **options,
        )
        return self._charged(result, ledger)

    async def embed(self, texts: Sequence[str], *, deadline_s: float | None = None) -> NDArray[np.float32]:
        """See :meth:`ModelClient.embed`."""
        return await self._client.embed(texts, deadline_s=self._deadline_s(deadline_s))

    async def count_tokens(
        self, messages: Sequence[Message] | str, documents: Sequence[Document] = ()
    ) -> TokenCount:
        """See :meth:`ModelClient.count_tokens`."""
        return await self._client.count_tokens(messages, documents, deadline_s=self._deadline_s(None))

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """See :meth:`ModelClient.list_models`."""
        return await self._client.list_models(deadline_s=self._deadline_s(None))

    async def _priced(self, model: str) -> TokenLedger:
        """The ledger of one call: where cost is capped, of the model that will answer."""
        if not isinstance(self._ledger, PricedLedger):
            return self._ledger
        return self._ledger.of(model or await self._client.default_model())

    def _charged(self, result: ChatResult, ledger: TokenLedger) -> ChatResult:
        """Count an answer, with what it cost."""
        if isinstance(ledger, PricedLedger):
            result = replace(result, usage=replace(result.usage, cost=ledger.exact(result.usage)))
        self._spent(result.usage)
        return result

    def _deadline_s(self, wanted: float | None) -> float | None:
        if self._ledger.limit == 0:
            raise BudgetExceeded(
                "no tokens were set aside for this subtask",
                kind="tokens",
                where="Budget.tokens",
                hint="raise Budget(tokens=…)",
            )
        left = self._remaining_s()
        if left is None:
            return wanted
        if left <= 0:
            raise DeadlineExceeded("the deadline of this subtask has passed", hint="raise Budget(wall_s=…)")
        return left if wanted is None else min(wanted, left)
