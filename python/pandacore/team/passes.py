"""How hosts of one collective know each other on the team plane.

A caller sends a *pass* with every call: its host's id, the second until which it holds, and a signature of
its host key over the collective, the host that is called, and that second. The called host takes calls only
from live members. A pass shown to one host is worth nothing at another.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import grpc

from pandacore import errors
from pandacore.rpc.errors import status_code, trailers
from pandacore.trust import verify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from pandacore.trust import KeyPair

__all__ = ["METADATA_KEY", "PASS_S", "Doorman", "Passport"]

METADATA_KEY: Final = "pandacore-pass-bin"
PASS_S: Final = 120
"""Seconds that a pass holds; also how far the clocks of two hosts may differ."""
_DOMAIN: Final = b"pandacore/team-call/v1\0"
_LENGTH: Final = 32 + 8 + 64
_MAX_KNOWN: Final = 4_096
_Metadata = tuple[tuple[str, bytes], ...]


def _message(collective: bytes, audience: bytes, until: bytes) -> bytes:
    return _DOMAIN + collective + audience + until


class Passport:
    """Makes the passes of one host.

    Parameters
    ----------
    key : KeyPair
        The host's.
    collective : bytes, length 32
    """

    def __init__(self, key: KeyPair, collective: bytes) -> None:
        self._key = key
        self._collective = collective
        self._passes: OrderedDict[bytes, tuple[int, _Metadata]] = OrderedDict()

    def metadata(self, audience: bytes) -> _Metadata:
        """The metadata of a call to the host ``audience``; signed anew once a minute."""
        now = int(time.time())
        until, made = self._passes.get(audience, (0, ()))
        if until - now < PASS_S // 2:
            until = now + PASS_S
            end = until.to_bytes(8, "big")
            signature = self._key.sign(_message(self._collective, audience, end))
            made = ((METADATA_KEY, self._key.public + end + signature),)
            self._passes[audience] = (until, made)
            while len(self._passes) > _MAX_KNOWN:
                self._passes.popitem(last=False)
        return made


class Doorman(grpc.aio.ServerInterceptor):
    """Lets calls of pandacore's services through that carry a good pass; health and reflection are open.

    Parameters
    ----------
    host, collective : bytes, length 32
        Whom passes must be made out to.
    is_member : async callable
        Whether a host is a live member; may wait a moment for one that has just joined.
    """

    def __init__(self, host: bytes, collective: bytes, is_member: Callable[[bytes], Awaitable[bool]]) -> None:
        self._host = host
        self._collective = collective
        self._is_member = is_member
        self._good: OrderedDict[bytes, int] = OrderedDict()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        # Answers come from the operator, who is no host; they carry a token of their own.
        if handler is None or not method.startswith("/pandacore.") or method.endswith("AgentService/Answer"):
            return handler
        reason = await self.refusal(handler_call_details.invocation_metadata or ())
        return _refusing(handler, reason) if reason else handler

    async def refusal(self, metadata: Sequence[tuple[str, str | bytes]]) -> str:
        """Why a call with this metadata is refused; empty if it is not."""
        shown = next((value for key, value in metadata if key == METADATA_KEY), None)
        if not isinstance(shown, bytes):
            return "the call carries no pass"
        if len(shown) != _LENGTH:
            return "the pass is malformed"
        now = int(time.time())
        until = int.from_bytes(shown[32:40], "big")
        if not now - PASS_S < until <= now + 2 * PASS_S:
            return "the pass is not valid now; compare the clocks of both hosts"
        if shown in self._good:
            return ""
        caller = shown[:32]
        if not verify(caller, _message(self._collective, self._host, shown[32:40]), shown[40:]):
            return "the pass is not made out to this host by its caller"
        if not await self._is_member(caller):
            return f"host {caller.hex()[:16]} is no live member"
        # Judged again with the caller's next pass, so a host that left is known for two minutes at most.
        self._good[shown] = until
        while len(self._good) > _MAX_KNOWN:
            self._good.popitem(last=False)
        return ""


def _refusing(handler: Any, reason: str) -> Any:
    error = errors.CallRefused(reason, hint="join the collective of this host, and call it through that")

    async def once(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(status_code(error), str(error), trailers(error))

    async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await context.abort(status_code(error), str(error), trailers(error))
        yield

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        stream if handler.response_streaming else once,
        handler.request_deserializer,
        handler.response_serializer,
    )
