"""TLS of the team plane: a host shows a certificate that its own key signed, and callers accept no other.

Nothing is handed out or fetched for that. The address of a host names its key, ``did:key:…@host:port``, and
the key is all that a caller needs to tell the host's certificate from anybody else's. The private key of the
certificate is made anew by each process and never written down.
"""

from __future__ import annotations

import base64

import grpc

from pandacore.gossip import team_anchor, team_identity
from pandacore.rpc.channel import OPTIONS
from pandacore.trust import KeyPair

__all__ = ["open_sealed_channel", "server_credentials"]


def server_credentials(key: KeyPair) -> grpc.ServerCredentials:
    """What the host with this key serves with."""
    private, certificate = team_identity(key)
    pair = (_pem("PRIVATE KEY", private), _pem("CERTIFICATE", certificate))
    return grpc.ssl_server_credentials([pair])


def open_sealed_channel(address: str, host: bytes) -> grpc.aio.Channel:
    """An encrypted channel to ``host:port`` that only works if the host with this id answers there."""
    anchor, name = team_anchor(host)
    credentials = grpc.ssl_channel_credentials(_pem("CERTIFICATE", anchor))
    return grpc.aio.secure_channel(
        address, credentials, options=(*OPTIONS, ("grpc.ssl_target_name_override", name))
    )


def _pem(label: str, der: bytes) -> bytes:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n".encode()
