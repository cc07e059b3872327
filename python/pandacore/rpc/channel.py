"""Channels and servers: the options that every gRPC end of pandacore shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from pandacore.errors import PayloadTooLarge

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MAX_PAYLOAD", "OPTIONS", "check_size", "open_channel"]

MAX_PAYLOAD: Final = 4 * 1024 * 1024
"""Largest message, in bytes. Larger material goes by reference, or is refused as ``PayloadTooLarge``."""

# The transport's own limit lies a little higher, so that our check fires first, with a typed error that
# names the producer, and metadata never tips an allowed message over.
_TRANSPORT_LIMIT: Final = MAX_PAYLOAD + 64 * 1024

OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    ("grpc.max_receive_message_length", _TRANSPORT_LIMIT),
    ("grpc.max_send_message_length", _TRANSPORT_LIMIT),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.enable_retries", 0),  # retries are ours: gRPC's know nothing of budgets or outcomes
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment must never see loopback traffic
    ("grpc.so_reuseport", 0),  # two servers on one port would split the agents between them
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A plaintext channel to ``host:port``; meant for loopback."""
    return grpc.aio.insecure_channel(address, options=OPTIONS)


def check_size(message: Message, *, producer: str) -> int:
    """Refuse a message that passes :data:`MAX_PAYLOAD`; answers its size in bytes.

    Raises
    ------
    PayloadTooLarge
        With the size, the limit and who produced it.
    """
    size = message.ByteSize()
    if size > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"{producer} produced {size} bytes, at most {MAX_PAYLOAD} fit one message",
            size=size,
            limit=MAX_PAYLOAD,
            producer=producer,
            hint="return a reference (a path or URL) or split the material",
        )
    return size
