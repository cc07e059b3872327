"""Who an agent is and whom it accepts: keys, certificates, web of trust.

An agent's id is its Ed25519 public key, printed as ``did:key:z6Mk…``; names prove nothing.
"""

from pandacore._core import TrustSearch
from pandacore.trust.checks import FULL_TRUST, UNREACHED
from pandacore.trust.graph import TrustGraph, choose_certifiers
from pandacore.trust.keys import KeyPair, did_of, parse_did, verify
from pandacore.trust.policy import Genesis, TrustPolicy
from pandacore.trust.sets import Explanation, LiveCertificate, TrustedSet
from pandacore.trust.statements import Certificate, Revocation, verify_chain
from pandacore.trust.store import TrustStore

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
