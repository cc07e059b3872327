"""Ed25519 keys and their names."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import stat
from pathlib import Path
from typing import NoReturn

from pandacore import _core
from pandacore.errors import (
    ConfigError,
    InvalidKey,
)

__all__ = ["KeyPair", "did_of", "parse_did", "public_key", "verify"]

# RFC 8410 PKCS#8: everything of an Ed25519 private key but its seed is constant.
_PKCS8_PREFIX = bytes.fromhex("302e020100300506032b657004220420")
_PEM_HEAD = "-----BEGIN PRIVATE KEY-----"
_PEM_TAIL = "-----END PRIVATE KEY-----"
_MAX_KEY_FILE = 4096


class KeyPair:
    """An Ed25519 key pair. The secret is never printed, logged or pickled.

    Make one with `generate`, `from_seed` or `load`.

    Examples
    --------
    >>> pair = KeyPair.from_seed(bytes(32))
    >>> pair
    KeyPair(did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp)
    >>> verify(pair.public, b"hello", pair.sign(b"hello"))
    True
    """

    __slots__ = ("_core", "did", "public")

    public: bytes
    """The 32-byte public key, which is the agent's id."""
    did: str
    """The public key as ``did:key:z6Mk…``."""

    def __init__(self, core: _core.KeyPair) -> None:
        self._core = core
        self.public = core.public
        self.did = _core.did_of(self.public)

    @classmethod
    def generate(cls) -> KeyPair:
        """Make a new key pair from the operating system's entropy."""
        return cls(_core.KeyPair(os.urandom(32)))

    @classmethod
    def from_seed(cls, seed: bytes) -> KeyPair:
        """Make the key pair of a secret seed (RFC 8032).

        Parameters
        ----------
        seed : bytes, length 32
            The secret. Use 32 bytes of entropy, except in tests and simulations.

        Raises
        ------
        InvalidKey
            ``seed`` is not 32 bytes.
        """
        if not isinstance(seed, bytes | bytearray) or len(seed) != 32:
            raise InvalidKey("a seed is 32 bytes", hint="use KeyPair.generate() for a random key")
        return cls(_core.KeyPair(bytes(seed)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyPair:
        """Read a key file as written by `save` or by ``openssl genpkey -algorithm ed25519``.

        Raises
        ------
        ConfigError
            The file cannot be read, or others than its owner may read it.
        InvalidKey
            The file is not an Ed25519 private key in PKCS#8 PEM.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MAX_KEY_FILE + 1)
        except OSError as error:
            raise ConfigError(
                f"cannot read the key file: {error.strerror}", where=str(path), hint="check the path"
            ) from error
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"others may read the key file (mode {stat.S_IMODE(mode):04o})",
                where=str(path),
                hint="run chmod 600 on it, or make a new key if it may have been read",
            )
        try:
            lines = text.decode("ascii").split()
            # "-----BEGIN PRIVATE KEY-----" splits into three words, as does the tail.
            head, body, tail = " ".join(lines[:3]), "".join(lines[3:-3]), " ".join(lines[-3:])
            der = base64.b64decode(body, validate=True)
        except (UnicodeDecodeError, binascii.Error):
            head, der, tail = "", b"", ""
        seed = der[len(_PKCS8_PREFIX) :]
        if (head, tail) != (_PEM_HEAD, _PEM_TAIL) or der[:-32] != _PKCS8_PREFIX or len(seed) != 32:
            # The content is not quoted: it may be a secret of another kind.
            raise InvalidKey(
                "the file is not an unencrypted Ed25519 private key in PKCS#8 PEM",
                where=str(path),
                hint="write one with KeyPair.generate().save(path)",
            )
        return cls.from_seed(seed)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the secret to a file that only its owner may read (mode 0600), as PKCS#8 PEM.

        The bytes are on disk before the file gets its name, so a crash leaves the old file or the new one.

        Parameters
        ----------
        path : str or path
            Where to write. Its folder must exist.
        overwrite : bool
            Whether an existing file may be replaced; a lost key is a lost identity.

        Raises
        ------
        ConfigError
            The file exists and ``overwrite`` is false, or it cannot be written.
        """
        path = Path(path)
        body = base64.b64encode(_PKCS8_PREFIX + self._core.seed()).decode("ascii")
        text = f"{_PEM_HEAD}\n{body}\n{_PEM_TAIL}\n".encode("ascii")
        draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                if overwrite:
                    draft.replace(path)
                else:
                    os.link(draft, path)  # unlike rename, fails when the name is taken
            finally:
                with contextlib.suppress(FileNotFoundError):
                    draft.unlink()
        except FileExistsError as error:
            raise ConfigError(
                "the key file exists already",
                where=str(path),
                hint="load it, choose another path, or pass overwrite=True",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write the key file: {error.strerror}",
                where=str(path),
                hint="the folder must exist and be writable",
            ) from error

    def sign(self, message: bytes) -> bytes:
        """Sign ``message``; 64 bytes, the same for the same message."""
        return self._core.sign(message)

    def __repr__(self) -> str:
        return f"KeyPair({self.did})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyPair) and self.public == other.public

    def __hash__(self) -> int:
        return hash(self.public)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyPair is not pickled: its secret would leave the process; use save() and load()")


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether ``signature`` is one of ``message`` by the owner of ``public``.

    False for anything malformed, too. Strict: keys of small order and non-canonical encodings are
    refused, so all hosts agree on every input.
    """
    return _core.verify_signature(public, message, signature)


def did_of(public: bytes) -> str:
    """Print a public key as ``did:key:z6Mk…``.

    Raises
    ------
    InvalidKey
        ``public`` is not an Ed25519 public key.
    """
    return _core.did_of(public)


def parse_did(text: str) -> bytes:
    """Read the 32-byte public key out of a ``did:key:z6Mk…``; the inverse of `did_of`.

    Raises
    ------
    InvalidKey
        The text is malformed, or names another kind of key.
    """
    return _core.parse_did(text)


def public_key(key: bytes) -> bytes:
    _core.did_of(key)  # raises InvalidKey
    return bytes(key)
