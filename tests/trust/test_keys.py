"""Keys, DIDs and key files."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore.errors import ConfigError, InvalidKey
from pandacore.trust import KeyPair, did_of, parse_did, verify

# RFC 8032 section 7.1, test 2.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_rfc_8032_vector_is_reproduced() -> None:
    pair = KeyPair.from_seed(SEED)
    assert pair.public == PUBLIC
    assert pair.sign(b"\x72") == SIGNATURE
    assert verify(PUBLIC, b"\x72", SIGNATURE)


@pytest.mark.parametrize(
    ("public", "message", "signature"),
    [
        (PUBLIC, b"\x73", SIGNATURE),
        (PUBLIC, b"\x72", SIGNATURE[:-1]),
        (PUBLIC, b"\x72", b""),
        (PUBLIC[:-1], b"\x72", SIGNATURE),
        (bytes(32), b"\x72", SIGNATURE),
    ],
    ids=["message", "short", "empty", "short-key", "small-order"],
)
def test_anything_else_is_not_verified(public: bytes, message: bytes, signature: bytes) -> None:
    assert not verify(public, message, signature)


@given(st.binary(min_size=32, max_size=32))
def test_did_round_trip(seed: bytes) -> None:
    pair = KeyPair.from_seed(seed)
    assert pair.did == did_of(pair.public)
    assert pair.did.startswith("did:key:z6Mk")
    assert parse_did(pair.did) == pair.public


@pytest.mark.parametrize("text", ["", "did:key:", "did:web:x", "did:key:z6Mk0", "did:key:z" + "6" * 10_000])
def test_malformed_did_raises_invalid_key(text: str) -> None:
    with pytest.raises(InvalidKey):
        parse_did(text)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), bytes(33)])
def test_did_of_no_key_raises_invalid_key(public: bytes) -> None:
    with pytest.raises(InvalidKey):
        did_of(public)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_seed_of_wrong_length_raises_invalid_key(seed: bytes) -> None:
    with pytest.raises(InvalidKey, match="32 bytes"):
        KeyPair.from_seed(seed)


def test_generated_keys_differ() -> None:
    assert KeyPair.generate() != KeyPair.generate()


def test_secret_is_in_no_repr_and_no_pickle() -> None:
    pair = KeyPair.from_seed(SEED)
    assert repr(pair) == f"KeyPair({pair.did})"
    assert SEED.hex() not in repr(pair._core)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(pair)


def test_key_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.pem"
    old = os.umask(0)  # the mode must not depend on the umask
    try:
        KeyPair.from_seed(SEED).save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeyPair.load(path).public == PUBLIC
    assert [p.name for p in tmp_path.iterdir()] == ["agent.pem"]


def test_key_file_is_not_overwritten_by_chance(tmp_path: Path) -> None:
    path = tmp_path / "agent.pem"
    KeyPair.from_seed(SEED).save(path)
    with pytest.raises(ConfigError, match="exists already"):
        KeyPair.generate().save(path)
    assert KeyPair.load(path).public == PUBLIC
    other = KeyPair.generate()
    other.save(path, overwrite=True)
    assert KeyPair.load(path) == other
    assert [p.name for p in tmp_path.iterdir()] == ["agent.pem"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.pem"
    KeyPair.from_seed(SEED).save(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read"):
        KeyPair.load(path)


@pytest.mark.parametrize("content", [b"", b"hunter2", b"\xff" * 40, b"A" * 100_000])
def test_broken_key_file_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidKey) as caught:
        KeyPair.load(path)
    assert "hunter2" not in str(caught.value)


def test_missing_key_file_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        KeyPair.load(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match="cannot write"):
        KeyPair.generate().save(tmp_path / "none" / "agent.pem")


@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
def test_openssl_reads_our_key_file_and_we_read_its(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    KeyPair.from_seed(SEED).save(ours)
    command = ["openssl", "pkey", "-in", str(ours), "-pubout", "-outform", "DER"]
    assert subprocess.run(command, check=True, capture_output=True).stdout[-32:] == PUBLIC
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(theirs)], check=True, capture_output=True
    )
    theirs.chmod(0o600)
    assert KeyPair.load(theirs).did.startswith("did:key:z6Mk")
