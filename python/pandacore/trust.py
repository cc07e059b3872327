"""Who an agent is and whom it accepts: keys, certificates, web of trust.

An agent's id is its Ed25519 public key, printed as ``did:key:z6Mk…``; names prove nothing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from pandacore import _core
from pandacore._core import TrustSearch
from pandacore.errors import (
    BadConsent,
    BadInterval,
    BadSignature,
    ConfigError,
    DuplicateStatement,
    Expired,
    ForeignCollective,
    InvalidKey,
    MalformedRecord,
    NotAuthorised,
    NotYetValid,
    QuotaExceeded,
    RefusedStatement,
    SelfStatement,
    ShapeError,
    UnknownAgent,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "FULL_TRUST",
    "UNREACHED",
    "Certificate",
    "Explanation",
    "Genesis",
    "KeyPair",
    "LiveCertificate",
    "Revocation",
    "TrustGraph",
    "TrustPolicy",
    "TrustSearch",
    "TrustStore",
    "TrustedSet",
    "choose_certifiers",
    "did_of",
    "parse_did",
    "verify",
    "verify_chain",
]

FULL_TRUST = 120
"""Trust amount of full trust; 60 is partial (OpenPGP's scale)."""

UNREACHED = 0xFFFF_FFFF
"""Layer of nodes outside a set, in arrays of layers."""

_DAY_S = 86_400
_UNLIMITED = 255

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


@dataclass(frozen=True, slots=True)
class Genesis:
    """What a collective was founded with; its hash is the collective id that every statement is bound to.

    Parameters
    ----------
    members : sequence of bytes
        Public keys of the founding members; order and repetitions do not matter.
    threshold : int
        Certifiers, themselves members, that make a member (t), 1 to 255.
    label : str
        Names the purpose and the policy, so that two collectives of the same founders differ.
    """

    members: tuple[bytes, ...]
    threshold: int = 2
    label: str = ""

    def __init__(self, members: Iterable[bytes], threshold: int = 2, label: str = "") -> None:
        checked = tuple(sorted({_public(member) for member in members}))
        if not checked:
            raise ConfigError("a collective needs a founding member", where="members")
        if not 1 <= threshold <= 255:
            raise ConfigError(f"threshold is {threshold}; it can be 1 to 255", where="threshold")
        object.__setattr__(self, "members", checked)
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "label", label)

    @property
    def collective_id(self) -> bytes:
        """SHA-256 of the descriptor, 32 bytes."""
        return _core.collective_id(list(self.members), self.threshold, self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustPolicy:
    """Whom an agent accepts. The policy belongs to the agent that decides, not to the network.

    Use `strict` (the default everywhere) or `panda`, and change single fields with keyword arguments.

    Parameters
    ----------
    rule : "path" or "threshold"
        ``path`` (PANDA): the agent is a member, and a chain of certificates between members leads to it.
        ``threshold``: t certifiers, each itself accepted at a lower layer; the layer is one more than the
        t-th smallest of the certifiers' layers.
    threshold : int
        Certifiers needed (t).
    max_depth : int, optional
        Longest chain, or deepest layer, from an anchor (n); None for no limit.
    anchor : "genesis", "self" or tuple of bytes
        Where trust starts: the founding members, the deciding agent itself, or these agents.
    anchor_weight : int
        Votes of an anchor under ``threshold``; t lets one anchor accept alone (GnuPG).
    reading : "directed" or "mutual"
        Whether a certificate also leads from its subject to its issuer. Only for ``path``.
    membership : "continuous" or "latched"
        Whether who loses its certifiers stops being a member. Only for ``path``; latched membership depends
        on what was seen when.
    grace_s : int
        Seconds for which an ended certificate still supports membership, so that renewal may be late.
    quota : int, optional
        Subjects of one issuer that count at once (q): the oldest certificates win. A certificate takes its
        place until it expires, revoked or not, so places cannot be freed by revoking.
    quota_window_s : int
        Shortest lifetime that counts under a quota, so that places cannot be freed by short lifetimes either.
    lifetime_s : int
        Lifetime of new certificates. Short, because it bounds the harm of a revocation that never arrives.
    renew_at : float
        Share of the lifetime after which a certificate is due for renewal.
    clock_skew_s : int
        How far ahead a statement may lie.
    """

    rule: Literal["path", "threshold"] = "threshold"
    threshold: int = 2
    max_depth: int | None = 3
    anchor: Literal["genesis", "self"] | tuple[bytes, ...] = "genesis"
    anchor_weight: int = 1
    reading: Literal["directed", "mutual"] = "directed"
    membership: Literal["continuous", "latched"] = "continuous"
    grace_s: int = 0
    quota: int | None = 20
    quota_window_s: int = 7 * _DAY_S
    lifetime_s: int = 7 * _DAY_S
    renew_at: float = 2 / 3
    clock_skew_s: int = 60

    def __post_init__(self) -> None:
        for name, allowed in (
            ("rule", ("path", "threshold")),
            ("reading", ("directed", "mutual")),
            ("membership", ("continuous", "latched")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it can be one of {allowed}", where=name
                )
        for name, least, most in (
            ("threshold", 1, 255),
            ("anchor_weight", 1, 255),
            ("grace_s", 0, UNREACHED),
            ("quota_window_s", 0, UNREACHED),
            ("lifetime_s", 1, UNREACHED),
            ("clock_skew_s", 0, UNREACHED),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can be {least} to {most}", where=name)
        for name in ("max_depth", "quota"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value}; it must not be negative", where=name)
        if not 0 < self.renew_at <= 1:
            raise ConfigError(
                f"renew_at is {self.renew_at}; it must be above 0 and at most 1", where="renew_at"
            )
        if isinstance(self.anchor, str) and self.anchor not in ("genesis", "self"):
            raise ConfigError(
                f"anchor is {self.anchor!r}; it can be 'genesis', 'self' or a tuple of public keys",
                where="anchor",
            )

    @classmethod
    def strict(cls, **changes: object) -> TrustPolicy:
        """Return the default: threshold rule, directed, quota of 20 subjects per issuer and week.

        A self anchor is one voter, so ``strict(anchor="self")`` gives it the weight t.
        """
        policy = _changed(cls(), changes)
        if policy.anchor == "self" and "anchor_weight" not in changes:
            return replace(policy, anchor_weight=policy.threshold)
        return policy

    @classmethod
    def panda(cls, **changes: object) -> TrustPolicy:
        """Return PANDA's rule: path between members, read in both directions, no quota.

        It accepts any number of Sybils once t members collude (see ``pandacore experiment governance``):
        meant for comparison and for small closed collectives.
        """
        lifetime_s = 7 * _DAY_S
        base = cls(rule="path", reading="mutual", quota=None, grace_s=lifetime_s // 3, lifetime_s=lifetime_s)
        return _changed(base, changes)

    def is_due(self, not_before: int, not_after: int, now_s: int) -> bool:
        """Tell whether a certificate with this validity is due for renewal at ``now_s``."""
        return now_s >= not_before + self.renew_at * (not_after - not_before)


def _changed(policy: TrustPolicy, changes: dict[str, object]) -> TrustPolicy:
    try:
        return replace(policy, **changes)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"unknown field of a trust policy: {error}", where="TrustPolicy") from None


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed statement, issuer → subject: "this agent belongs here". ``record`` is its wire form.

    It counts only with the subject's consent, so that nobody is drafted into a graph.

    Examples
    --------
    >>> founder, newcomer = KeyPair.from_seed(b"f" * 32), KeyPair.from_seed(b"n" * 32)
    >>> genesis = Genesis([founder.public], threshold=1)
    >>> offer = Certificate.issue(founder, newcomer.public, genesis.collective_id, not_before=0, not_after=9)
    >>> certificate = offer.consented(newcomer)
    >>> store = TrustStore(genesis, now_s=0, policy=TrustPolicy.strict(threshold=1, quota=None))
    >>> store.ingest(certificate)
    >>> store.trusted().contains(newcomer.public)
    True
    """

    record: bytes
    id: bytes
    collective_id: bytes
    issuer: bytes
    subject: bytes
    serial: int
    not_before: int
    not_after: int
    max_depth: int | None
    amount: int

    @classmethod
    def issue(
        cls,
        issuer: KeyPair,
        subject: bytes,
        collective_id: bytes,
        *,
        not_before: int,
        not_after: int,
        serial: int = 0,
        max_depth: int | None = None,
        amount: int = FULL_TRUST,
    ) -> Certificate:
        """Sign a certificate; it still lacks the subject's consent.

        Parameters
        ----------
        issuer : KeyPair
            Who vouches.
        subject : bytes
            Public key of whom is vouched for.
        collective_id : bytes
            The collective it is valid in.
        not_before, not_after : int
            First second of validity and first second after it.
        serial : int
            Tells certificates of this issuer and subject apart; a revocation names it.
        max_depth : int, optional
            How many certificates a chain may have behind this one, 0 to 254; None for no limit.
        amount : int
            Trust amount, 0 to 120. 0 withdraws older certificates for the interval.

        Raises
        ------
        ConfigError
            A number is out of range.
        InvalidKey
            ``subject`` is not a public key.
        """
        _range("max_depth", max_depth, 0, 254)
        _range("amount", amount, 0, FULL_TRUST)
        for name, value in (("not_before", not_before), ("not_after", not_after), ("serial", serial)):
            _range(name, value, 0, 2**64 - 1)
        depth = _UNLIMITED if max_depth is None else max_depth
        core = issuer._core
        record = core.certify(
            _id32(collective_id), _public(subject), serial, not_before, not_after, depth, amount
        )
        return cls.parse(record)

    def consented(self, subject: KeyPair) -> Certificate:
        """Return the certificate with the subject's consent.

        Raises
        ------
        NotAuthorised
            ``subject`` is not the certificate's subject.
        """
        if subject.public != self.subject:
            raise NotAuthorised("only the subject can consent", where=did_of(self.subject))
        return Certificate.parse(subject._core.consent(self.record))

    @classmethod
    def parse(cls, record: bytes) -> Certificate:
        """Read a certificate; signatures are not checked here.

        Raises
        ------
        MalformedRecord
            The bytes are no certificate.
        """
        kind, record_id, collective, _, issuer, subject, serial, begin, end, depth, amount = (
            _core.decode_record(record)
        )
        if kind != "certificate":
            raise MalformedRecord(f"the record is a revocation ({kind}), not a certificate")
        limit = None if depth == _UNLIMITED else depth
        return cls(bytes(record), record_id, collective, issuer, subject, serial, begin, end, limit, amount)

    def verify(self) -> None:
        """Check both signatures.

        Raises
        ------
        BadSignature, BadConsent, InvalidKey
            What is wrong.
        """
        _core.verify_record(self.record)


@dataclass(frozen=True, slots=True)
class Revocation:
    """A signed statement that ends something; it holds for ever, in whatever order it arrives."""

    record: bytes
    kind: Literal["revoked", "retired", "compromised", "expel"]
    id: bytes
    collective_id: bytes
    signer: bytes
    subject: bytes
    at: int

    @classmethod
    def of(cls, certificate: Certificate, signer: KeyPair, *, at: int) -> Revocation:
        """End one certificate from ``at`` on; its issuer and its subject (resignation) may do so.

        Raises
        ------
        NotAuthorised
            ``signer`` is neither.
        """
        if signer.public not in (certificate.issuer, certificate.subject):
            raise NotAuthorised("only issuer and subject can revoke a certificate", where=signer.did)
        core = signer._core
        collective, serial = certificate.collective_id, certificate.serial
        return cls.parse(core.revoke(collective, certificate.issuer, certificate.subject, serial, at))

    @classmethod
    def retire(cls, key: KeyPair, collective_id: bytes, *, at: int) -> Revocation:
        """Retire the signer's own key at ``at`` (soft): what it certified before stays.

        ``at`` may lie ahead: that is the key's expiry.
        """
        return cls.parse(key._core.retire(_id32(collective_id), at))

    @classmethod
    def compromised(cls, key: KeyPair, collective_id: bytes, *, at: int) -> Revocation:
        """Declare the signer's own key compromised (hard): nothing it certified counts, nor ever did."""
        return cls.parse(key._core.compromised(_id32(collective_id), at))

    @classmethod
    def expel(cls, voter: KeyPair, subject: bytes, collective_id: bytes, *, at: int) -> Revocation:
        """Vote to expel ``subject``; t such votes of members at lower layers expel it."""
        return cls.parse(voter._core.expel(_id32(collective_id), _public(subject), at))

    @classmethod
    def parse(cls, record: bytes) -> Revocation:
        """Read a revocation; the signature is not checked here.

        Raises
        ------
        MalformedRecord
            The bytes are no revocation.
        """
        kind, record_id, collective_id, signer, _, subject, _, at, _, _, _ = _core.decode_record(record)
        if kind == "certificate":
            raise MalformedRecord("the record is a certificate, not a revocation")
        return cls(bytes(record), kind, record_id, collective_id, signer, subject, at)


@dataclass(frozen=True, slots=True)
class LiveCertificate:
    """A certificate that counts at the reference time."""

    issuer: bytes
    id: bytes
    not_before: int
    not_after: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an agent is, or is not, accepted, at one reference time.

    Attributes
    ----------
    reason : str
        ``accepted``, ``anchor``, ``unknown``, ``compromised``, ``expelled``, ``retired``, ``not a member``,
        ``too few certificates``, ``over quota`` (too few count, and enough would if no budget was used up, or
        if all lived long enough to take a place in one) or ``too far``.
    layer : int, optional
        Layer or distance; None if it is not reached within the depth.
    path : tuple of bytes
        Rule ``path``: the shortest chain from an anchor, ties by agent id.
    support : tuple of (issuer, subject)
        Rule ``threshold``: certificates, anchors first, that alone give the agent this layer.
    certificates : tuple of LiveCertificate
        Everything on the agent that counts now.
    needed : int
        Certificates needed (t).
    uncounted : tuple of LiveCertificate
        For ``not a member``, ``too few certificates`` and ``over quota``: what does not count only because of
        its issuer's quota.
    """

    agent: bytes
    trusted: bool
    reason: str
    reference_time_s: int
    rule: str
    layer: int | None
    path: tuple[bytes, ...]
    support: tuple[tuple[bytes, bytes], ...]
    certificates: tuple[LiveCertificate, ...]
    needed: int
    uncounted: tuple[LiveCertificate, ...] = ()


_REFUSALS: dict[int, tuple[type[RefusedStatement | InvalidKey], str]] = {
    1: (MalformedRecord, "the bytes are no record"),
    2: (InvalidKey, "a key is not an Ed25519 public key"),
    3: (ForeignCollective, "the record belongs to another collective"),
    4: (SelfStatement, "issuer and subject are the same agent"),
    5: (BadInterval, "the validity interval is empty, too long or out of range"),
    6: (Expired, "the certificate has expired"),
    7: (NotYetValid, "the statement lies in the future"),
    8: (BadSignature, "the signature is not the signer's"),
    9: (BadConsent, "the consent is not the subject's"),
    10: (NotAuthorised, "the signer may not make this statement"),
    11: (DuplicateStatement, "the statement is already known"),
    12: (QuotaExceeded, "the signer has too many statements stored"),
}


class TrustGraph:
    """Certificates between numbered nodes, without keys: for simulations, studies and bulk questions.

    Nodes ``0 .. genesis - 1`` are the founding members. `TrustStore` is the same with keys and signatures.

    Parameters
    ----------
    nodes : int
        Number of nodes, founding members included; `grow` adds more.
    genesis : int
        Number of founding members.
    policy : TrustPolicy
        Quota, membership and grace apply to the whole graph; rule, anchors and depth to single sets.
    now_s : int
        Reference time of every answer, in seconds; `advance` moves it.

    Notes
    -----
    Safe to use from several threads. Searches and bulk changes let other Python threads run.
    """

    def __init__(
        self,
        nodes: int,
        *,
        genesis: int = 1,
        policy: TrustPolicy | None = None,
        now_s: int = 0,
        per_signer: int = 1 << 20,
    ) -> None:
        _range("nodes", nodes, 1, 2**31 - 2)
        _range("genesis", genesis, 1, nodes)
        self.policy = policy or TrustPolicy.strict()
        # Numbered keys: the store wants 32 bytes each, and their order is the order of the numbers.
        members = [n.to_bytes(32, "big") for n in range(genesis)]
        self._core = _make_core(members, "", self.policy, now_s, per_signer)
        self._genesis = genesis
        self._named = genesis
        self._size = nodes
        self._default: tuple[TrustPolicy, TrustSearch] | None = None

    def _name(self) -> None:
        """Give every node the key that the store wants, before the first certificate of `add`."""
        if self._named < self._size:
            numbers = np.arange(self._named, self._size, dtype=">u8")
            keys = np.zeros((len(numbers), 32), np.uint8)
            keys[:, 24:] = numbers.view(np.uint8).reshape(-1, 8)
            self._core.intern_many(keys)
            self._named = self._size

    @property
    def now_s(self) -> int:
        """The reference time of every answer, in seconds."""
        return self._core.now

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self._size

    @property
    def memory_bytes(self) -> int:
        """Bytes of topology and validity."""
        return self._core.memory_bytes

    def grow(self, nodes: int) -> None:
        """Add nodes up to ``nodes`` (only before `load`, or for use with `add`)."""
        _range("nodes", nodes, self._size, 2**31 - 2)
        self._size = nodes
        self._name()

    def load(
        self, issuers: ArrayLike, subjects: ArrayLike, *, not_before: ArrayLike, not_after: ArrayLike
    ) -> None:
        """Load a whole certificate graph at once; the fast way for millions of certificates.

        Parameters
        ----------
        issuers, subjects : uint32, shape (n,)
            Each pair at most once.
        not_before, not_after : uint32, shape (n,) or scalar
            Seconds.

        Raises
        ------
        ShapeError
            The arrays differ in length.
        UnknownAgent
            A number is not below the number of nodes.
        StateError
            Certificates were added with `add` before.
        """
        issuers, subjects, begins, ends = _columns(issuers, subjects, not_before, not_after)
        self._core.load(self._size, issuers, subjects, begins, ends)

    def apply(
        self,
        kinds: ArrayLike,
        issuers: ArrayLike,
        subjects: ArrayLike,
        *,
        not_before: ArrayLike,
        not_after: ArrayLike,
    ) -> None:
        """Apply certificate events to a loaded graph, in order; all sets are right after each event.

        Parameters
        ----------
        kinds : uint8, shape (n,)
            0: issuer certifies subject for [not_before, not_after), replacing what the pair had. 1: what the
            pair has ends at ``not_before``. 2: the reference time moves to ``not_before``.
        """
        issuers, subjects, begins, ends = _columns(issuers, subjects, not_before, not_after)
        kinds = np.ascontiguousarray(np.broadcast_to(np.asarray(kinds, np.uint8), issuers.shape))
        self._core.apply(kinds, issuers, subjects, begins, ends)

    def add(
        self,
        issuers: ArrayLike,
        subjects: ArrayLike,
        *,
        not_before: ArrayLike,
        not_after: ArrayLike,
        serial: ArrayLike = 0,
        max_depth: int | None = None,
        amount: int = FULL_TRUST,
    ) -> NDArray[np.bool_]:
        """Add certificates by all rules of the policy (quota, newest wins, ...).

        Returns
        -------
        bool, shape (n,)
            Which were taken; the others were expired, known already, or otherwise refused.
        """
        _range("max_depth", max_depth, 0, 254)
        _range("amount", amount, 0, FULL_TRUST)
        self._name()
        issuers, subjects, begins, ends = _columns(issuers, subjects, not_before, not_after)
        serials = _column("serial", serial, np.uint64, len(issuers))
        depth = _UNLIMITED if max_depth is None else max_depth
        codes = self._core.admit(issuers, subjects, serials, begins, ends, depth, amount)
        return np.asarray(codes == 0)

    def end(self, issuers: ArrayLike, subjects: ArrayLike, *, at_s: int, serial: ArrayLike = 0) -> None:
        """Revoke certificates from ``at_s`` on."""
        issuers, subjects, _, _ = _columns(issuers, subjects, 0, 0)
        self._core.end_many(issuers, subjects, _column("serial", serial, np.uint64, len(issuers)), at_s)

    def void(self, nodes: ArrayLike) -> None:
        """Declare keys compromised: all certificates on and by these nodes are void, for good."""
        self._core.compromise_many(_column("nodes", nodes, np.uint32))

    def advance(self, now_s: int) -> None:
        """Move the reference time forward.

        Raises
        ------
        StateError
            ``now_s`` lies in the past.
        """
        _range("now_s", now_s, 0, UNREACHED - 1)
        self._core.advance(now_s)

    def trusted(
        self,
        anchors: int | Sequence[int] | NDArray[np.integer] | None = None,
        *,
        policy: TrustPolicy | None = None,
    ) -> TrustedSet:
        """Start to maintain a trusted set; ``anchors`` are nodes, by default the founding members."""
        chosen = range(self._genesis) if anchors is None else np.atleast_1d(anchors)
        return TrustedSet(self._core, policy or self.policy, [int(node) for node in chosen], None)

    def members(self) -> NDArray[np.bool_]:
        """Return which nodes are members, as bool by node."""
        self._core.need_members()
        return self._core.members()

    def search(self, policy: TrustPolicy | None = None) -> TrustSearch:
        """Return the path rule of a policy, resolved once, for questions of about a microsecond each.

        ``search.distance(anchor, target)``, ``search.reach_count(anchor)``, ``search.reach(anchor)``; over
        arrays, ``search.distances(anchors, targets)``. Depth limits of single certificates are obeyed by
        distances only. The answers follow all later changes of the graph.

        Raises
        ------
        ConfigError
            The policy's rule is not ``path``: the threshold rule has no chains between two nodes.
        """
        policy = policy or self.policy
        if policy.rule != "path":
            raise ConfigError("only the path rule searches chains", where="rule", hint="use trusted()")
        if self._default is None or self._default[0] is not policy:
            self._default = (policy, self._core.path_search(_depth(policy), _flags(policy)))
        return self._default[1]

    def distance(self, anchor: int, target: int, *, policy: TrustPolicy | None = None) -> int | None:
        """Return the length of the shortest chain of rule ``path`` from ``anchor``, or None.

        Notes
        -----
        Searches from both ends: about the square root of a search from one end.
        """
        return self.search(policy).distance(anchor, target)

    def distances(
        self, anchors: ArrayLike, targets: ArrayLike, *, policy: TrustPolicy | None = None
    ) -> NDArray[np.int32]:
        """Return `distance` of many pairs; -1 where there is no chain."""
        first, second = _column("anchors", anchors, np.uint32), _column("targets", targets, np.uint32)
        return self.search(policy).distances(first, second)

    def reach_count(self, anchor: int, *, policy: TrustPolicy | None = None) -> int:
        """Return how many nodes ``anchor`` accepts under rule ``path``, itself included."""
        return self.search(policy).reach_count(anchor)

    def reach(self, anchors: int | Sequence[int], *, policy: TrustPolicy | None = None) -> NDArray[np.uint32]:
        """Return the nodes that the anchors accept, anchors first, in order of layer."""
        policy = policy or self.policy
        nodes = [int(node) for node in np.atleast_1d(anchors)]
        if policy.rule == "path":
            return self._core.reach(nodes, _depth(policy), self._flags(policy))[0]
        return self._core.reach_threshold(nodes, policy.threshold, policy.anchor_weight, policy.max_depth)[0]

    def reach_sizes(
        self,
        anchors: ArrayLike,
        *,
        policy: TrustPolicy | None = None,
        among: ArrayLike | None = None,
        threads: int = 1,
    ) -> NDArray[np.uint32]:
        """Return for each anchor how many nodes it accepts on its own, itself included.

        Parameters
        ----------
        anchors : uint32, shape (n,)
        among : bool, shape (nodes,), optional
            Count only these nodes.
        threads : int
            Threads to split the anchors over.
        """
        policy = policy or self.policy
        nodes = _column("anchors", anchors, np.uint32)
        mask = None if among is None else _words(np.asarray(among))
        t = policy.threshold if policy.rule == "threshold" else 1
        flags = self._flags(policy)
        return self._core.reach_sizes(nodes, t, policy.anchor_weight, _depth(policy), flags, mask, threads)

    def flow(self, anchors: Sequence[int], target: int, *, limit: int = FULL_TRUST) -> int:
        """Return the trust amount that certificates among members carry to ``target``: maximum flow.

        For offline use: it looks at everything behind ``target``.
        """
        self._core.need_members()
        return self._core.flow(list(anchors), target, limit)

    def advogato(
        self, seeds: Sequence[int], capacities: Sequence[int] = (800, 200, 50, 12, 4, 2, 1)
    ) -> NDArray[np.uint32]:
        """Return the nodes that Advogato's network flow from the seeds accepts. For offline use."""
        return self._core.advogato(list(seeds), list(capacities))

    def issued(self, node: int) -> int:
        """Return how many subjects take a place in the issuer's budget now, revoked or not."""
        return self._core.issued(node)

    def _flags(self, policy: TrustPolicy) -> int:
        if policy.rule == "path":
            self._core.need_members()
        return _flags(policy)


class TrustStore:
    """Everything a host knows about who vouches for whom, verified once, and whom it therefore accepts.

    Parameters
    ----------
    genesis : Genesis
        The collective. Statements of another one are refused.
    now_s : int
        Reference time of every answer, in seconds since 1970 (or of a simulation); `advance` moves it.
    policy : TrustPolicy, optional
        Default `TrustPolicy.strict`. Its quota, membership, grace and clock skew hold for the whole store;
        `trusted` takes others for the rest. ``genesis.threshold`` decides membership.
    me : bytes, optional
        The deciding agent, for the anchor ``self``.
    max_lifetime_s : int
        Certificates that live longer are refused.
    per_signer, capacity : int
        Most statements stored of one signer, and in all. Beyond the first the answers of two hosts may
        depend on what arrived first.

    Notes
    -----
    Up to those bounds the answers depend on what is known and on the time, not on the order of arrival.
    Safe to use from several threads; signature checks, searches and bulk changes let other threads run.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        now_s: int,
        policy: TrustPolicy | None = None,
        me: bytes | None = None,
        max_lifetime_s: int = 400 * _DAY_S,
        per_signer: int = 4096,
        capacity: int = 8_000_000,
    ) -> None:
        self.genesis = genesis
        self.policy = policy or TrustPolicy.strict()
        self.me = me
        self._core = _make_core(
            list(genesis.members),
            genesis.label,
            replace(self.policy, threshold=genesis.threshold),
            now_s,
            per_signer,
            capacity=capacity,
            max_lifetime_s=max_lifetime_s,
        )

    @property
    def now_s(self) -> int:
        """The reference time of every answer, in seconds."""
        return self._core.now

    def __len__(self) -> int:
        """Return the number of stored statements."""
        return self._core.statements

    def advance(self, now_s: int) -> None:
        """Move the reference time forward; what expired meanwhile is forgotten, all sets are right.

        Raises
        ------
        StateError
            ``now_s`` lies in the past.
        """
        _range("now_s", now_s, 0, UNREACHED - 1)
        self._core.advance(now_s)

    def ingest(self, statement: Certificate | Revocation | bytes) -> None:
        """Verify a statement and take it in; all sets are right when this returns.

        Raises
        ------
        RefusedStatement
            Which subclass says why. The store is unchanged then.
        InvalidKey
            A key in it is no public key.
        """
        self._core.ingest(statement if isinstance(statement, bytes) else statement.record)

    def ingest_many(
        self, statements: Iterable[Certificate | Revocation | bytes], *, threads: int | None = None
    ) -> list[RefusedStatement | InvalidKey | None]:
        """Verify many statements on all cores and take them in; return None or the refusal for each.

        Parameters
        ----------
        threads : int, optional
            Threads for the signature checks; by default one per core.
        """
        records = [s if isinstance(s, bytes) else s.record for s in statements]
        codes = self._core.ingest_many(records, threads or os.cpu_count() or 1)
        answers: list[RefusedStatement | InvalidKey | None] = []
        for code in codes.tolist():
            kind = _REFUSALS.get(code)
            answers.append(None if kind is None else kind[0](kind[1]))
        return answers

    def export(self) -> list[bytes]:
        """Return every stored statement; `ingest_many` of another store takes them in."""
        return self._core.export()

    def digest(self) -> bytes:
        """Return 32 bytes that are equal on hosts that know the same statements."""
        return self._core.digest()

    def trusted(
        self, *, policy: TrustPolicy | None = None, anchor: bytes | Iterable[bytes] | None = None
    ) -> TrustedSet:
        """Start to maintain the set of agents that ``policy`` accepts.

        Parameters
        ----------
        policy : TrustPolicy, optional
            Default: the store's.
        anchor : bytes or iterable of bytes, optional
            Agents to start from instead of the policy's anchor.

        Raises
        ------
        ConfigError
            The anchors together have fewer votes than the threshold, or ``self`` is asked for without ``me``.
        """
        policy = policy or self.policy
        anchors: Iterable[bytes]
        if anchor is not None:
            anchors = [anchor] if isinstance(anchor, bytes) else anchor
        elif policy.anchor == "genesis":
            anchors = self.genesis.members
        elif policy.anchor == "self":
            if self.me is None:
                raise ConfigError(
                    "the policy's anchor is 'self', but the store does not know who that is",
                    where="anchor",
                    hint="pass me=... to TrustStore or anchor=... here",
                )
            anchors = [self.me]
        else:
            anchors = policy.anchor
        return TrustedSet(self._core, policy, [self._core.intern(agent) for agent in anchors], self)

    def number(self, agents: Iterable[bytes]) -> NDArray[np.uint32]:
        """Return the nodes of agents, which get one if they have none.

        A registry whose slots are to share the numbering announces agents in this order: the founding
        members sorted by key, then as numbered here; `TrustedSet.bitmap` then needs no reordering.
        """
        return np.fromiter((self._core.intern(agent) for agent in agents), np.uint32)

    def agent(self, node: int) -> bytes:
        """Return the agent of a node."""
        return self._core.agent(node)

    def node(self, agent: bytes) -> int | None:
        """Return the node of an agent, None if no statement names it."""
        return self._core.node(agent) if len(agent) == 32 else None

    def is_member(self, agent: bytes) -> bool:
        """Tell whether an agent is a member: t certificates of members, up from the founding members."""
        self._core.need_members()
        node = self.node(agent)
        return node is not None and self._core.is_member(node)

    def certificates(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that count now, by issuer."""
        return self._certificates(agent, beyond_budget=False)

    def beyond_budget(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that do not count only because of a quota, by issuer.

        Either the issuer certified ``quota`` others first, or the lifetime is below ``quota_window_s``.
        Looks at all certificates: for explanations.
        """
        return self._certificates(agent, beyond_budget=True)

    def _certificates(self, agent: bytes, *, beyond_budget: bool) -> tuple[LiveCertificate, ...]:
        node = self.node(agent)
        if node is None:
            return ()
        live = [
            LiveCertificate(self._core.agent(issuer), certificate_id, begin, end)
            for issuer, certificate_id, begin, end in self._core.live_certificates(node, beyond_budget)
        ]
        return tuple(sorted(live, key=lambda certificate: certificate.issuer))

    def due_for_renewal(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that have passed the policy's share of their lifetime."""
        now = self.now_s
        live = self.certificates(agent)
        return tuple(c for c in live if self.policy.is_due(c.not_before, c.not_after, now))

    def issued(self, agent: bytes) -> int:
        """Return how many subjects take a place in the agent's budget as an issuer now, revoked or not."""
        node = self.node(agent)
        return 0 if node is None else self._core.issued(node)

    def chain(self, path: Sequence[bytes]) -> list[Certificate]:
        """Return the certificates along a witness path, for `verify_chain` elsewhere.

        Raises
        ------
        UnknownAgent
            Two neighbours have no live certificate between them.
        """
        found = []
        for first, second in itertools.pairwise(path):
            nodes = [self.node(first), self.node(second)]
            record = None
            if nodes[0] is not None and nodes[1] is not None:
                # A mutual reading also walks from subject to issuer.
                record = self._core.live_record(nodes[0], nodes[1])
                record = record or self._core.live_record(nodes[1], nodes[0])
            if record is None:
                raise UnknownAgent("no live certificate between two neighbours", where=did_of(second))
            found.append(Certificate.parse(record))
        return found


class TrustedSet:
    """The agents that one policy accepts, kept right while statements arrive, expire and are revoked.

    Made by `TrustStore.trusted` (agents are public keys) or `TrustGraph.trusted` (agents are nodes). Close
    it, or use it as a context manager, when it is no longer needed: each costs a little with every event.
    """

    def __init__(
        self, core: _core.TrustCore, policy: TrustPolicy, anchors: list[int], store: TrustStore | None
    ) -> None:
        t = policy.threshold if policy.rule == "threshold" else 1
        if t > len(set(anchors)) * policy.anchor_weight:
            raise ConfigError(
                f"{len(set(anchors))} anchor(s) of weight {policy.anchor_weight} never reach {t} votes",
                where="anchor_weight",
                hint=f"use anchor_weight={t}, or more anchors",
            )
        self.policy = policy
        self._core = core
        self._store = store
        self._anchors = sorted(set(anchors))
        self._id: int | None = core.add_set(
            self._anchors, t, policy.anchor_weight, policy.max_depth, policy.reading == "mutual",
            policy.rule == "path",
        )  # fmt: skip
        self._snapshot: tuple[tuple[int, int, int], NDArray[np.uint64]] | None = None

    def close(self) -> None:
        """Stop to maintain the set; asking it afterwards raises StateError."""
        if self._id is not None:
            self._core.drop_set(self._id)
            self._id = None

    def __enter__(self) -> TrustedSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> TrustStore:
        """The store behind the set; only for sets of a `TrustStore`."""
        return self._keys()

    @property
    def version(self) -> tuple[int, int, int]:
        """Count of changes, reference time and number of nodes: equal means that nothing changed."""
        return self._core.set_version(self._handle())

    def __len__(self) -> int:
        """Return the number of accepted agents, anchors included, retired keys not taken off."""
        return self._core.set_len(self._handle())

    def contains(self, agent: bytes | int) -> bool:
        """Tell whether the set holds an agent (and its key is not retired)."""
        node = self._node(agent)
        return node is not None and self._core.trusts(self._handle(), node)

    def contains_many(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Tell it for many nodes at once; uint32, shape (n,) to bool, shape (n,)."""
        return self._core.trusts_many(self._handle(), _column("nodes", nodes, np.uint32))

    def layer(self, agent: bytes | int) -> int | None:
        """Return the layer of an agent (0 for anchors; under ``path`` the distance), None if outside."""
        node = self._node(agent)
        layer = -1 if node is None else self._core.layer(self._handle(), node)
        return None if layer < 0 else layer

    def layers(self) -> NDArray[np.uint32]:
        """Return all layers by node; `UNREACHED` outside. Retired keys are not taken off."""
        return self._core.set_layers(self._handle())

    def bitmap(self, nodes: ArrayLike | None = None) -> NDArray[np.uint64]:
        """Return the set as bits, 64 a word, lowest first, as ``Registry.set_trusted_bitmap`` takes it.

        Parameters
        ----------
        nodes : uint32, shape (n,), optional
            Node of each slot of a registry (`TrustStore.number`); the bits are then by slot. Without it they
            are by node, and the same read-only array is returned until something changes.
        """
        version = self.version
        if self._snapshot is None or self._snapshot[0] != version:
            words = self._core.bitmap(self._handle())
            words.flags.writeable = False
            self._snapshot = (version, words)
        words = self._snapshot[1]
        if nodes is None:
            return words
        slots = _column("nodes", nodes, np.uint32)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        inside = np.zeros(len(slots), np.bool_)
        known = slots < len(bits)
        inside[known] = bits[slots[known]] != 0
        return _words(inside)

    def agents(self) -> list[bytes]:
        """Return the accepted agents' public keys, sorted; only for sets of a `TrustStore`."""
        store = self._keys()
        bits = np.unpackbits(self.bitmap().view(np.uint8), bitorder="little")
        return sorted(store.agent(int(node)) for node in np.flatnonzero(bits))

    def nodes(self) -> NDArray[np.uint32]:
        """Return the accepted nodes, in order."""
        bits = np.unpackbits(self.bitmap().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint32)

    def witness(self, agent: bytes | int) -> tuple[bytes, ...] | tuple[int, ...] | None:
        """Return the shortest chain from an anchor to the agent, ties by agent id; None without one.

        Only for rule ``path``; `explain` gives the support under ``threshold``.
        """
        node = self._node(agent)
        if node is None or self.policy.rule != "path":
            return None
        path = self._core.witness(self._anchors, node, _depth(self.policy), _flags(self.policy))
        if path is None:
            return None
        if self._store is None:
            return tuple(path)
        return tuple(self._core.agent(step) for step in path)

    def explain(self, agent: bytes) -> Explanation:
        """Say why an agent is, or is not, in the set; only for sets of a `TrustStore`."""
        store = self._keys()
        node = store.node(agent)
        policy = self.policy
        layer = self.layer(agent)
        path: tuple[bytes, ...] = ()
        support: tuple[tuple[bytes, bytes], ...] = ()
        certificates = store.certificates(agent)
        state = "" if node is None else self._core.key_state(node)
        if node is None:
            reason = "unknown"
        elif state:
            reason = state
        elif layer == 0:
            reason = "anchor"
        elif layer is not None:
            reason = "accepted"
        elif policy.rule == "path" and not store.is_member(agent):
            reason = "not a member"
        elif policy.rule == "threshold" and not self._reached_by_enough(certificates):
            reason = "too few certificates"
        else:
            reason = "too far"
        uncounted: tuple[LiveCertificate, ...] = ()
        if reason in ("not a member", "too few certificates"):
            uncounted = store.beyond_budget(agent)
            if uncounted and len(certificates) + len(uncounted) >= policy.threshold:
                reason = "over quota"
        if layer is not None and node is not None:
            if policy.rule == "path":
                found = self._core.witness(self._anchors, node, _depth(policy), _flags(policy)) or []
                path = tuple(self._core.agent(step) for step in found)
            else:
                support = self._support(store, agent)
        return Explanation(
            agent, layer is not None, reason, store.now_s, policy.rule, layer, path, support, certificates,
            policy.threshold, uncounted,
        )  # fmt: skip

    def _reached_by_enough(self, certificates: Iterable[LiveCertificate]) -> bool:
        layers = [self._live_layer(certificate.issuer) for certificate in certificates]
        votes = sum(self.policy.anchor_weight if layer == 0 else 1 for layer in layers if layer is not None)
        return votes >= self.policy.threshold

    def _live_layer(self, agent: bytes) -> int | None:
        """Layer of an agent, also with a retired key: what it certified before still counts."""
        node = self._node(agent)
        layers = self.layers()
        if node is None or node >= len(layers) or layers[node] == UNREACHED:
            return None
        return int(layers[node])

    def _support(self, store: TrustStore, agent: bytes) -> tuple[tuple[bytes, bytes], ...]:
        found: dict[tuple[bytes, bytes], int] = {}
        pending, seen = [agent], {agent}
        while pending:
            subject = pending.pop()
            layer = self._live_layer(subject)
            if not layer:
                continue
            voters = [(self._live_layer(c.issuer), c.issuer) for c in store.certificates(subject)]
            votes = 0
            for level, issuer in sorted((level, issuer) for level, issuer in voters if level is not None):
                if votes >= self.policy.threshold:
                    break
                votes += self.policy.anchor_weight if level == 0 else 1
                found[(issuer, subject)] = layer
                if issuer not in seen:
                    seen.add(issuer)
                    pending.append(issuer)
        return tuple(sorted(found, key=lambda edge: (found[edge], edge)))

    def _handle(self) -> int:
        # A dropped id is free for another set: never ask with it.
        return 2**63 - 1 if self._id is None else self._id

    def _node(self, agent: bytes | int) -> int | None:
        return self._core.node(agent) if isinstance(agent, bytes) else agent

    def _keys(self) -> TrustStore:
        if self._store is None:
            raise ConfigError("a set of a TrustGraph has no keys", where="TrustedSet", hint="use nodes()")
        return self._store


def verify_chain(
    certificates: Sequence[Certificate],
    *,
    anchors: Iterable[bytes],
    collective_id: bytes,
    now_s: int,
    max_depth: int | None,
    mutual: bool = False,
) -> bool:
    """Re-verify a witness path elsewhere, from its certificates alone.

    Checks the signatures, the collective, that each is valid at ``now_s``, that they join up from an anchor,
    the length, each certificate's own depth limit, and that no agent occurs twice. Revocations and membership
    cannot be seen in a chain: only a store that knows them can rule them out.

    Parameters
    ----------
    mutual : bool
        Also accept certificates from subject to issuer.
    """
    if not certificates or (max_depth is not None and len(certificates) > max_depth):
        return False
    first = certificates[0]
    starts = [agent for agent in (first.issuer, first.subject)[: 2 if mutual else 1] if agent in set(anchors)]
    return any(
        _joins(certificates, start, collective_id=collective_id, now_s=now_s, mutual=mutual)
        for start in starts
    )


def _joins(
    certificates: Sequence[Certificate], start: bytes, *, collective_id: bytes, now_s: int, mutual: bool
) -> bool:
    at, seen = start, {start}
    for place, certificate in enumerate(certificates):
        behind = len(certificates) - 1 - place
        usable = (
            certificate.collective_id == collective_id
            and certificate.not_before <= now_s < certificate.not_after
            and certificate.amount > 0
            and (certificate.max_depth is None or certificate.max_depth >= behind)
        )
        if certificate.issuer == at:
            at = certificate.subject
        elif mutual and certificate.subject == at:
            at = certificate.issuer
        else:
            return False
        try:
            certificate.verify()
        except (RefusedStatement, InvalidKey):
            return False
        if not usable or at in seen:
            return False
        seen.add(at)
    return True


def choose_certifiers(
    layers: NDArray[np.uint32],
    spare: NDArray[np.integer] | NDArray[np.bool_],
    count: int,
    *,
    random: Callable[[int, int], NDArray[np.integer]] | None = None,
) -> NDArray[np.int64]:
    """Choose whom a newcomer asks: the lowest layer that still has ``count`` members with spare quota.

    Filling the lowest layers first keeps the graph shallow, which gives the threshold rule its recall.

    Parameters
    ----------
    layers : uint32, shape (n,)
        Layer of each node; `UNREACHED` outside.
    spare : int or bool, shape (n,)
        Places left in each node's budget; 0 or less for none, also for nodes that are gone.
    count : int
        Certifiers wanted (t).
    random : callable, optional
        ``random(n, k)`` gives k different numbers below n; without it those with most places left, then the
        lowest numbers, are chosen.

    Returns
    -------
    int64, shape (count,)
        Nodes; empty if no layer has enough, not even together with the lower ones.
    """
    # Nodes that came after the last change of a set are missing at the end of its layers.
    known = min(len(layers), len(spare))
    open_nodes = np.flatnonzero((np.asarray(spare)[:known] > 0) & (layers[:known] != UNREACHED))
    depths = layers[open_nodes]
    for layer in np.unique(depths):
        pool = open_nodes[depths == layer]
        if len(pool) >= count:
            break
    else:
        # No single layer has enough: mix the lowest.
        pool = open_nodes[np.argsort(depths, kind="stable")][:count]
        return np.asarray(pool, np.int64) if len(pool) == count else np.empty(0, np.int64)
    if random is not None:
        return np.asarray(pool[random(len(pool), count)], np.int64)
    best = np.lexsort((pool, -np.asarray(spare)[pool].astype(np.int64)))
    return np.asarray(pool[best[:count]], np.int64)


def _make_core(
    members: list[bytes],
    label: str,
    policy: TrustPolicy,
    now_s: int,
    per_signer: int,
    *,
    capacity: int = 2**32,
    max_lifetime_s: int = UNREACHED,
) -> _core.TrustCore:
    _range("now_s", now_s, 0, UNREACHED - 1)
    quota = None if policy.quota is None else (policy.quota, policy.quota_window_s)
    return _core.TrustCore(
        members,
        policy.threshold,
        label,
        policy.membership == "latched",
        policy.grace_s,
        quota,
        max_lifetime_s,
        policy.clock_skew_s,
        per_signer,
        capacity,
        now_s,
    )


def _depth(policy: TrustPolicy) -> int:
    return -1 if policy.max_depth is None else policy.max_depth


def _flags(policy: TrustPolicy) -> int:
    return (policy.reading == "mutual") + 2 * (policy.rule == "path")


def _public(key: bytes) -> bytes:
    _core.did_of(key)  # raises InvalidKey
    return bytes(key)


def _id32(value: bytes) -> bytes:
    if len(value) != 32:
        raise ConfigError(f"a collective id is 32 bytes, this one {len(value)}", where="collective_id")
    return bytes(value)


def _range(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{name} is {value}; it can be {least} to {most}", where=name)


def _column(name: str, values: ArrayLike, dtype: type[np.integer], length: int | None = None) -> NDArray:  # type: ignore[type-arg]
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ShapeError(f"{name} has dtype {array.dtype}; it needs whole numbers", where=name)
    if array.ndim == 0 and length is not None:
        array = np.broadcast_to(array, (length,))
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise ShapeError(
            f"{name} has shape {array.shape}; it needs one dimension of {length or 'n'}", where=name
        )
    if array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ShapeError(f"{name} holds numbers outside {np.dtype(dtype)}", where=name)
    return np.ascontiguousarray(array, dtype)


def _columns(
    issuers: ArrayLike, subjects: ArrayLike, begins: ArrayLike, ends: ArrayLike
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    first = _column("issuers", np.atleast_1d(np.asarray(issuers)), np.uint32)
    return (
        first,
        _column("subjects", subjects, np.uint32, len(first)),
        _column("not_before", begins, np.uint32, len(first)),
        _column("not_after", ends, np.uint32, len(first)),
    )


def _words(inside: NDArray[np.bool_]) -> NDArray[np.uint64]:
    bits = np.zeros(-(-len(inside) // 64) * 64, np.bool_)
    bits[: len(inside)] = inside
    return np.packbits(bits, bitorder="little").view(np.uint64)
