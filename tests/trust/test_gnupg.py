"""GnuPG's trust database as an oracle for both rules.

Owners of marginal trust make GnuPG's classic model the threshold rule with anchor weight t; owners of full
trust make it the path rule without a membership condition.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pandacore.trust import TrustGraph, TrustPolicy

KEYS = 16
SEED = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed (apt install gnupg)"),
]


class Gpg:
    """A key ring of its own with a random certificate graph; the first key is ultimately trusted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        rng = random.Random(SEED)
        for n in range(KEYS):
            self.run("--quick-gen-key", f"a{n} <a{n}@example.org>", "ed25519", "cert", "never")
        self.prints = self._fingerprints()
        self.edges: list[tuple[int, int]] = []
        for subject in range(1, KEYS):
            for issuer in rng.sample(range(subject), min(subject, rng.choice([1, 2, 2, 3]))):
                self.run("--local-user", self.prints[issuer], "--quick-sign-key", self.prints[subject])
                self.edges.append((issuer, subject))

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--no-tty"]
        command += ["--pinentry-mode", "loopback", "--passphrase", "", "--no-auto-check-trustdb"]
        done = subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, check=True, timeout=120
        )
        return done.stdout

    def _fingerprints(self) -> list[str]:
        found: dict[int, str] = {}
        current = ""
        for line in self.run("--list-keys", "--with-colons").splitlines():
            fields = line.split(":")
            if fields[0] == "pub":
                current = ""
            elif fields[0] == "fpr" and not current:
                current = fields[9]
            elif fields[0] == "uid" and (match := re.match(r"a(\d+)", fields[9])):
                found[int(match[1])] = current
        return [found[n] for n in range(KEYS)]

    def trusted(self, *, t: int, depth: int, owner_trust: int) -> set[int]:
        """Return whom GnuPG holds valid if all owners but the first have this trust (4 marginal, 5 full)."""
        owners = [6, *[owner_trust] * (KEYS - 1)]
        lines = [f"{print_}:{owner}:\n" for print_, owner in zip(self.prints, owners, strict=True)]
        self.run("--import-ownertrust", stdin="".join(lines))
        # GnuPG wants at least two marginals; with full owners the number does not matter.
        options = ["--trust-model", "classic", "--completes-needed", "1"]
        options += ["--marginals-needed", str(max(t, 2)), "--max-cert-depth", str(depth)]
        self.run(*options, "--check-trustdb")
        valid: set[int] = set()
        number = {print_: n for n, print_ in enumerate(self.prints)}
        current = ""
        for line in self.run(*options, "--list-keys", "--with-colons").splitlines():
            fields = line.split(":")
            if fields[0] == "pub":
                current = ""
            elif fields[0] == "fpr" and not current:
                current = fields[9]
            elif fields[0] == "uid" and fields[1] in ("f", "u"):
                valid.add(number[current])
        return valid


@pytest.fixture(scope="module")
def gpg() -> Iterator[Gpg]:
    # The agent's socket path must stay short, which pytest's folders are not.
    home = Path(tempfile.mkdtemp(prefix="gpg"))
    home.chmod(0o700)
    try:
        yield Gpg(home)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, env=os.environ)
        shutil.rmtree(home, ignore_errors=True)


def ours(gpg: Gpg, policy: TrustPolicy) -> set[int]:
    graph = TrustGraph(KEYS, genesis=1, policy=policy, now_s=1)
    issuers, subjects = zip(*gpg.edges, strict=True)
    assert graph.add(issuers, subjects, not_before=0, not_after=100).all()
    return set(graph.trusted().nodes().tolist())


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("t", [2, 3])
def test_threshold_rule_equals_gnupg_with_marginal_owners(gpg: Gpg, t: int, depth: int) -> None:
    policy = TrustPolicy.strict(threshold=t, anchor_weight=t, max_depth=depth, quota=None)
    assert ours(gpg, policy) == gpg.trusted(t=t, depth=depth, owner_trust=4)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_path_rule_and_threshold_one_equal_gnupg_with_full_owners(gpg: Gpg, depth: int) -> None:
    expected = gpg.trusted(t=1, depth=depth, owner_trust=5)
    path = TrustPolicy.panda(threshold=1, max_depth=depth, reading="directed", grace_s=0)
    assert ours(gpg, path) == expected
    assert ours(gpg, TrustPolicy.strict(threshold=1, max_depth=depth, quota=None)) == expected
