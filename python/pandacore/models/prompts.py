"""How documents and tools are shown to models that have no notion of them. One place, so prompts agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pandacore.models.types import Message, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pandacore.models.types import ChatRequest, Document

__all__ = ["messages_with_documents", "render_documents"]


def render_documents(documents: Sequence[Document]) -> str:
    """Documents as text: a numbered title each, then its numbered sentences.

    Examples
    --------
    >>> from pandacore.models.types import Document
    >>> print(render_documents([Document("d1", "Pandas", ("They eat bamboo.", "They sleep."))]))
    [1] Pandas
    (1.0) They eat bamboo.
    (1.1) They sleep.
    """
    blocks = []
    for number, document in enumerate(documents, 1):
        lines = [f"[{number}] {document.title or document.id}"]
        # Sentences count from 0, as in the evidence that evaluations ask for.
        lines += [f"({number}.{index}) {text.strip()}" for index, text in enumerate(document.sentences)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def messages_with_documents(request: ChatRequest) -> tuple[Message, ...]:
    """The conversation with the documents put in front of the first user message.

    The documents go after the system message and before the question: a prompt prefix shared by several
    questions over the same documents can then be reused by the engine's cache.
    """
    if not request.documents:
        return tuple(request.messages)
    passages = f"Passages:\n\n{render_documents(request.documents)}"
    found = list(request.messages)
    for index, message in enumerate(found):
        if message.role is Role.USER:
            found[index] = Message(Role.USER, f"{passages}\n\n{message.content}", name=message.name)
            return tuple(found)
    return (*found, Message(Role.USER, passages))
