"""Typed errors over gRPC: an exception of :mod:`pandacore.errors` survives the wire as the same class.

A failed call carries an ``ErrorDetail`` in its trailing metadata; a failed subtask carries it in its last
event. Only classes of the error tree cross: anything else becomes :class:`~pandacore.errors.AgentFailed`
or :class:`~pandacore.errors.ProtocolError` with the class name as text, never an import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from pandacore import errors
from pandacore.rpc.v1 import model_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DETAIL_KEY", "MAX_TEXT", "error_of_call", "from_detail", "status_code", "to_detail", "trailers"]

DETAIL_KEY: Final = "pandacore-error-bin"
MAX_TEXT: Final = 2_000
"""Longest message, hint or place that is sent, in characters: trailing metadata is small."""

_KINDS: Final[dict[str, type[errors.PandacoreError]]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, errors.PandacoreError)
}

# The status that a foreign gRPC client sees, which knows nothing of the detail; most specific first.
_CODES: Final[tuple[tuple[type[errors.PandacoreError], grpc.StatusCode], ...]] = (
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.PayloadTooLarge, grpc.StatusCode.OUT_OF_RANGE),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.RateLimited, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.BudgetExceeded, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.UnsupportedFeature, grpc.StatusCode.UNIMPLEMENTED),
    (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND),
    (errors.UnknownAgent, grpc.StatusCode.NOT_FOUND),
    (errors.AuthenticationFailed, grpc.StatusCode.UNAUTHENTICATED),
    (errors.CallRefused, grpc.StatusCode.UNAUTHENTICATED),
    (errors.ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidPlan, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.StateError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.ModelUnavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.Truncated, grpc.StatusCode.DATA_LOSS),
    (errors.InvalidOutput, grpc.StatusCode.DATA_LOSS),
    (errors.PandacoreError, grpc.StatusCode.INTERNAL),
)


def status_code(error: BaseException) -> grpc.StatusCode:
    """The gRPC status for an error of the tree; ``INTERNAL`` for anything else."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def to_detail(error: BaseException) -> model_pb2.ErrorDetail:
    """The wire form of an error. Texts are cut to :data:`MAX_TEXT` characters."""
    if not isinstance(error, errors.PandacoreError):
        return model_pb2.ErrorDetail(
            type="AgentFailed",
            message=f"{type(error).__name__}: {error}"[:MAX_TEXT],
            producer=type(error).__name__,
            retry_after_s=-1,
        )
    detail = model_pb2.ErrorDetail(
        type=_wire_name(type(error)),
        message=error.message[:MAX_TEXT],
        hint=(error.hint or "")[:MAX_TEXT],
        where=(error.where or "")[:MAX_TEXT],
        retry_after_s=-1,
    )
    match error:
        case errors.RateLimited(retry_after_s=float() | int() as seconds):
            detail.retry_after_s = seconds
        case errors.PayloadTooLarge():
            detail.size, detail.limit, detail.producer = error.size, error.limit, error.producer[:MAX_TEXT]
        case errors.BudgetExceeded():
            detail.producer = error.kind
            detail.size, detail.limit = max(int(error.used), 0), max(int(error.limit), 0)
        case errors.AgentFailed():
            detail.producer = error.kind[:MAX_TEXT]
    return detail


def _wire_name(kind: type[errors.PandacoreError]) -> str:
    """The nearest class of the tree: a user's own subclass travels as its public base."""
    return next(base.__name__ for base in kind.__mro__ if _KINDS.get(base.__name__) is base)


def from_detail(detail: model_pb2.ErrorDetail) -> errors.PandacoreError:
    """The exception that the peer described; an unknown type becomes ``ProtocolError`` and says so."""
    hint, where = detail.hint or None, detail.where or None
    kind = _KINDS.get(detail.type)
    if kind is None:
        return errors.ProtocolError(
            f"peer reported {detail.type or 'an error'}: {detail.message}", where=where, hint=hint
        )
    if kind is errors.RateLimited:
        after = detail.retry_after_s if detail.retry_after_s >= 0 else None
        return errors.RateLimited(detail.message, retry_after_s=after, where=where, hint=hint)
    if kind is errors.PayloadTooLarge:
        return errors.PayloadTooLarge(
            detail.message,
            size=detail.size,
            limit=detail.limit,
            producer=detail.producer,
            where=where,
            hint=hint,
        )
    if kind is errors.BudgetExceeded:
        return errors.BudgetExceeded(
            detail.message, kind=detail.producer, limit=detail.limit, used=detail.size, where=where, hint=hint
        )
    if kind is errors.AgentFailed:
        return errors.AgentFailed(detail.message, kind=detail.producer, where=where, hint=hint)
    return kind(detail.message, where=where, hint=hint)


def trailers(error: BaseException) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries the error's detail."""
    return ((DETAIL_KEY, to_detail(error).SerializeToString()),)


def error_of_call(
    error: grpc.aio.AioRpcError, *, where: str, metadata: Iterable[tuple[str, str | bytes]] | None = None
) -> errors.PandacoreError | None:
    """The typed error in a failed call's trailing metadata, or None if the peer sent none that parses."""
    for key, value in metadata if metadata is not None else (error.trailing_metadata() or ()):
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                detail = model_pb2.ErrorDetail.FromString(value)
            except Exception:  # a foreign or damaged detail: fall back to the status code
                return None
            typed = from_detail(detail)
            typed.where = typed.where or where
            return typed
    return None
