"""The exception tree.

Every error says what failed, where, why, and one next action (``hint``). ``errors`` imports nothing of
pandacore, so the Rust extension can raise these classes without a cycle.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgentFailed",
    "AuthenticationFailed",
    "BadConsent",
    "BadInterval",
    "BadSignature",
    "BudgetExceeded",
    "CallRefused",
    "Cancelled",
    "CircuitOpen",
    "ConfigError",
    "ConnectionLost",
    "CorruptFile",
    "DataDirLocked",
    "DeadlineExceeded",
    "DimensionMismatch",
    "DuplicateAnswer",
    "DuplicateId",
    "DuplicateStatement",
    "Expired",
    "ForeignCollective",
    "ForkError",
    "ImpossibleReport",
    "IncompatibleJournal",
    "InputRequired",
    "InvalidAnswer",
    "InvalidKey",
    "InvalidName",
    "InvalidOutput",
    "InvalidPlan",
    "InvalidVector",
    "JoinRefused",
    "JournalCorrupt",
    "KeyInUse",
    "LoopDetected",
    "MalformedRecord",
    "ModelError",
    "ModelMismatch",
    "ModelNotFound",
    "ModelUnavailable",
    "NoQuorum",
    "NoReplacement",
    "NoTeam",
    "NotAuthorised",
    "NotYetValid",
    "Overloaded",
    "PandacoreError",
    "PayloadTooLarge",
    "ProtocolError",
    "QuotaExceeded",
    "RateLimited",
    "RefusedStatement",
    "RunFailed",
    "SelfStatement",
    "ShapeError",
    "StaleReport",
    "StateError",
    "StorageFull",
    "Truncated",
    "UnknownAgent",
    "UnknownCapability",
    "UnknownId",
    "UnknownOutcome",
    "UnknownPrice",
    "UnknownQuestion",
    "UnknownRun",
    "UnsupportedFeature",
    "UntrustedWitness",
    "WrongCollective",
]


class PandacoreError(Exception):
    """Base of every error that pandacore raises.

    Parameters
    ----------
    message : str
        What failed and why.
    where : str, optional
        The place, as a path such as ``$.steps[2].input``, a file, or an address.
    hint : str, optional
        The one next action that is most likely to help.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # The keyword-only arguments would be lost by the default protocol.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    kind: type[PandacoreError], args: tuple[object, ...], state: dict[str, object]
) -> PandacoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(PandacoreError, ValueError):
    """A setting or argument is unknown, malformed or out of range."""


class ShapeError(PandacoreError, ValueError):
    """An array has the wrong dtype, dimension or length."""


class DimensionMismatch(ShapeError):
    """Vectors have another number of components than the index: ``got`` instead of ``expected``.

    ``model`` is the embedding model of the index, or empty.
    """

    def __init__(
        self,
        message: str,
        *,
        expected: int = 0,
        got: int = 0,
        model: str = "",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.expected = expected
        self.got = got
        self.model = model


class InvalidVector(PandacoreError, ValueError):
    """Vectors with NaN, infinity or only zeros. ``rows``: the first of their row numbers; ``count``: all."""

    def __init__(
        self,
        message: str,
        *,
        rows: tuple[int, ...] = (),
        count: int = 0,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.rows = rows
        self.count = count


class ModelMismatch(PandacoreError, ValueError):
    """Vectors of one embedding model met those of another: ``got`` instead of ``expected``."""

    def __init__(
        self,
        message: str,
        *,
        expected: str = "",
        got: str = "",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.expected = expected
        self.got = got


class StateError(PandacoreError, RuntimeError):
    """The object is not in a state that allows the call: not started, closed, or half failed."""


class ForkError(StateError):
    """The object was created before a ``fork``; the child process must create its own."""


class InvalidName(PandacoreError, ValueError):
    """A display name or capability breaks the naming rule."""


class InvalidKey(PandacoreError, ValueError):
    """A key, key file or ``did:key`` text is malformed, or not an Ed25519 key."""


class RefusedStatement(PandacoreError, ValueError):
    """A signed statement was refused. The receiver's state is byte-identical to before."""


class BadConsent(RefusedStatement):
    """The subject's consent is not a signature of this certificate by the subject."""


class BadInterval(RefusedStatement):
    """A validity interval is empty, out of range, or longer than certificates may live."""


class BadSignature(RefusedStatement):
    """The signature is not one of this statement by its signer."""


class DuplicateStatement(RefusedStatement):
    """The statement, or one that says the same or more, is already known."""


class Expired(RefusedStatement):
    """The certificate had expired at the reference time."""


class ForeignCollective(RefusedStatement):
    """The statement belongs to another collective."""


class ImpossibleReport(RefusedStatement):
    """No sequence of observations leads to the reported rating."""


class MalformedRecord(RefusedStatement):
    """The bytes are no record: wrong length, unknown kind, or unknown flags."""


class NotAuthorised(RefusedStatement):
    """The signer may not make this statement."""


class NotYetValid(RefusedStatement):
    """The statement lies further in the future than clocks may differ."""


class QuotaExceeded(RefusedStatement):
    """The signer, or the store, already has as many statements as it may."""


class SelfStatement(RefusedStatement):
    """Somebody vouches for, votes about, or rates itself."""


class StaleReport(RefusedStatement):
    """A replayed report, a second one in the same epoch, or one that is too old."""


class UntrustedWitness(RefusedStatement):
    """The report's author is not in the receiver's trusted set, so it may not testify."""


class DuplicateId(PandacoreError, ValueError):
    """An id that must be unique occurs twice."""


class UnknownAgent(PandacoreError, KeyError):
    """No agent with this id is registered."""

    __str__ = PandacoreError.__str__  # KeyError would print the repr


class UnknownCapability(PandacoreError, KeyError):
    """The name cannot be resolved to exactly one capability of the registry."""

    __str__ = PandacoreError.__str__


class UnknownId(PandacoreError, KeyError):
    """The index has no vector of this id."""

    __str__ = PandacoreError.__str__


class CorruptFile(PandacoreError, ValueError):
    """A stored file is damaged, cut off, or not of the expected kind; nothing of it was used."""


class KeyInUse(StateError):
    """Another process runs with this host's key; the earlier start has stopped itself."""


class JoinRefused(PandacoreError, ConnectionError):
    """A seed refused this host: no valid join ticket, not the pinned key, or another protocol."""


class CallRefused(PandacoreError, PermissionError):
    """A host takes no calls from this caller: it carries no valid pass of a live member of the collective."""


class WrongCollective(JoinRefused):
    """A seed belongs to another collective. ``ours`` and ``theirs`` are the two ids, as hex."""

    def __init__(
        self,
        message: str,
        *,
        ours: str = "",
        theirs: str = "",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.ours = ours
        self.theirs = theirs


class DataDirLocked(StateError):
    """Another process owns the file or folder; its process id is in the message."""


class IncompatibleJournal(PandacoreError):
    """A journal, or a record of it, was written by another schema version."""


class JournalCorrupt(PandacoreError):
    """A journal is damaged; ``where`` names the first bad record. Never skipped over."""


class StorageFull(PandacoreError, OSError):
    """The disk took no more; nothing half written is left behind."""

    __str__ = PandacoreError.__str__  # OSError would print its own arguments


class UnknownRun(PandacoreError, KeyError):
    """No run with this id is in the journal."""

    __str__ = PandacoreError.__str__


class InvalidPlan(PandacoreError, ValueError):
    """A plan has a cycle, an unknown dependency, or a subtask that no rule allows."""


class NoTeam(PandacoreError):
    """No valid team exists. ``missing`` maps each short capability to the number of agents it lacks."""

    def __init__(
        self,
        message: str,
        *,
        missing: dict[str, int] | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.missing = dict(missing or {})


class NoReplacement(NoTeam):
    """A team member was lost and nobody can take its place: pool, registry and broadcast gave none."""


class NoQuorum(PandacoreError):
    """Too few voting members are left to decide."""


class LoopDetected(PandacoreError):
    """The same thing was tried again without progress. ``cycle`` names the steps, the first one repeated."""

    def __init__(
        self,
        message: str,
        *,
        cycle: tuple[str, ...] | list[str] = (),
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.cycle = tuple(cycle)


class Overloaded(PandacoreError):
    """A bounded queue is full; nothing was started."""


class BudgetExceeded(PandacoreError):
    """A cap would be passed. Checked before the call, so nothing was spent beyond ``used``.

    ``kind`` is the cap (``tokens``, ``wall_s``, ``steps``, ...), ``limit`` its value, ``used`` what is
    spent or reserved, ``asked`` what the refused call wanted.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "tokens",
        limit: float = 0,
        used: float = 0,
        asked: float = 0,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind
        self.limit = limit
        self.used = used
        self.asked = asked


class UnknownPrice(PandacoreError, KeyError):
    """Cost is capped and nobody said what this model costs; nothing was called."""

    __str__ = PandacoreError.__str__


class DeadlineExceeded(PandacoreError, TimeoutError):
    """The deadline passed before an answer came."""


class Cancelled(PandacoreError):
    """The caller cancelled the work."""


class ConnectionLost(PandacoreError, ConnectionError):
    """The peer could not be reached, or the stream broke before anything was executed."""


class UnknownOutcome(PandacoreError):
    """The peer vanished after it began: the effect may have happened. Not retried unless idempotent."""


class PayloadTooLarge(PandacoreError, ValueError):
    """A payload passes the message limit; never retried. Sizes in bytes."""

    def __init__(
        self,
        message: str,
        *,
        size: int = 0,
        limit: int = 0,
        producer: str = "",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.size = size
        self.limit = limit
        self.producer = producer


class ProtocolError(PandacoreError):
    """A peer sent something that the protocol does not allow."""


class AgentFailed(PandacoreError):
    """An agent's own code raised; ``kind`` is the class name of that exception."""

    def __init__(
        self, message: str, *, kind: str = "", where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind


class InputRequired(PandacoreError):
    """Raised by an agent that cannot go on without an answer from outside; its subtask then waits.

    Once all its questions are answered the subtask is executed again, by the same agent if it is still
    there: ``Task.answers`` then holds the answers by their ids, ``Task.state`` what was given here. What was
    done before can so be skipped.

    Parameters
    ----------
    *questions : str or Question
        What has to be known; a text alone stands for ``Question(text)``.
    state : JSON value
        Given back with the answers.

    Examples
    --------
    >>> raise InputRequired("Send it to 3 people?", state={"draft": "Dear all"})
    Traceback (most recent call last):
    pandacore.errors.InputRequired: Send it to 3 people? (answer it with Collective.answer)
    """

    def __init__(
        self, *questions: Any, state: Any = None, where: str | None = None, hint: str | None = None
    ) -> None:
        texts = [str(getattr(question, "text", question)) for question in questions]
        super().__init__(
            "; ".join(texts) or "an answer is needed",
            where=where,
            hint=hint or "answer it with Collective.answer",
        )
        self.questions = questions
        self.state = state


class UnknownQuestion(PandacoreError, KeyError):
    """No open question has this id."""

    __str__ = PandacoreError.__str__


class DuplicateAnswer(PandacoreError, ValueError):
    """The question has its answer already; the first one stands."""


class InvalidAnswer(PandacoreError, ValueError):
    """The answer does not fit the question's schema."""


class RunFailed(PandacoreError):
    """A run ended without an output; ``status`` is its terminal state."""

    def __init__(
        self,
        message: str,
        *,
        status: str = "failed",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.status = status


class ModelError(PandacoreError):
    """Base of what can go wrong with a model call. ``retryable`` says if a retry may help."""

    retryable = False


class ModelNotFound(ModelError):
    """The server, or the catalogue, has no such model."""


class ModelUnavailable(ModelError, ConnectionError):
    """The model server refused, broke off or failed with a server error."""

    retryable = True


class RateLimited(ModelError):
    """The model server asked for fewer calls. ``retry_after_s`` is its wish in seconds, if it gave one."""

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.retry_after_s = retry_after_s


class CircuitOpen(ModelUnavailable):
    """The breaker is open after repeated failures; no call was made."""

    retryable = False


class AuthenticationFailed(ModelError):
    """The model server rejected the credentials."""


class UnsupportedFeature(ModelError):
    """The backend cannot honour a requested option, and says so rather than ignore it."""


class InvalidOutput(ModelError):
    """The model's output is not what was asked for: malformed JSON, a schema violation, a wrong type."""


class Truncated(ModelError):
    """The model's output was cut off; it is never parsed into an action."""
