"""What the model server asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pandacore.errors import ModelNotFound, UnsupportedFeature
from pandacore.models.types import ChatDelta, TokenCount

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from pandacore.models.types import ChatRequest, ChatResult, Document, Embeddings, Message, ModelInfo

__all__ = ["Backend", "estimate_tokens"]


def estimate_tokens(messages: Sequence[Message], documents: Sequence[Document] = ()) -> int:
    """Tokens of a prompt by a rule of thumb that errs high: 3 UTF-8 bytes a token, 8 a message."""
    size = sum(len(message.content.encode("utf-8", "surrogatepass")) for message in messages)
    for document in documents:
        size += len(document.title.encode("utf-8", "surrogatepass"))
        size += sum(len(text.encode("utf-8", "surrogatepass")) + 8 for text in document.sentences)
    return -(-size // 3) + 8 * (len(messages) + len(documents))


class Backend(ABC):
    """Answers the requests of one server process.

    The server checks a request against `models` first, bounds how many run at once, and cancels the task of
    a call whose deadline passed or whose caller left: on ``CancelledError`` a backend must stop its engine.
    A backend raises errors of `pandacore.errors` and never retries: the client does, so that layers of
    retries do not multiply.
    """

    name: ClassVar[str]
    """Short name, as in ``--backend``."""

    concurrency: int = 8
    """Calls that may run at once when the server is not told otherwise."""

    async def start(self) -> None:  # noqa: B027 - a backend may have nothing to load
        """Load what is needed; called once, before the server says that it is ready."""

    async def aclose(self) -> None:  # noqa: B027
        """Free everything; called once. No call is running then."""

    @abstractmethod
    async def models(self) -> Sequence[ModelInfo]:
        """The models it serves, the default first."""

    @abstractmethod
    async def chat(self, request: ChatRequest) -> ChatResult:
        """The whole answer to a request."""

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The same answer in pieces; the last has ``result``. By default: one piece, then the result."""
        result = await self.chat(request)
        if result.text:
            yield ChatDelta(result.text, result.usage.completion_tokens)
        yield ChatDelta(result=result)

    async def embed(self, texts: Sequence[str], *, model: str = "") -> Embeddings:
        """Unit vectors of texts, in order."""
        raise UnsupportedFeature(
            f"the {self.name} backend makes no embeddings", hint="use a backend that advertises them"
        )

    async def count_tokens(
        self, messages: Sequence[Message], documents: Sequence[Document] = (), *, model: str = ""
    ) -> TokenCount:
        """Tokens that the messages and documents take in a prompt."""
        return TokenCount(estimate_tokens(messages, documents), exact=False)

    async def model(self, name: str) -> ModelInfo:
        """The model of that name, or the default for an empty name.

        Raises
        ------
        ModelNotFound
            The backend does not serve it.
        """
        known = await self.models()
        for info in known:
            if name in ("", info.id):
                return info
        raise ModelNotFound(
            f"no model {name!r}; there is {', '.join(info.id for info in known) or 'none'}",
            hint="ask for one of these, or leave the model empty for the default",
        )
