//! Who an agent is, whom it accepts, and how reliable it has found its peers.
//!
//! Pure: the reference time of every decision and the entropy of every key are arguments.
mod keys;

pub use keys::{AgentId, KeyError, KeyPair, SIGNATURE_LEN};
