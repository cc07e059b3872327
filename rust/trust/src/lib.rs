//! Who an agent is, whom it accepts, and how reliable it has found its peers.
//!
//! Pure: the reference time of every decision and the entropy of every key are arguments.
mod beta;
mod certificate;
mod flow;
mod graph;
mod hint;
mod keys;
mod layers;
mod ledger;
mod members;
mod reputation;
mod search;
mod web;

pub use certificate::{
    CERTIFICATE_LEN, Certificate, FULL, Genesis, REVOCATION_LEN, Record, Refusal, Revocation, RevocationKind,
    UNLIMITED,
};
pub use flow::{advogato, flow};
pub use graph::{Graph, MAX_NODES, Span};
pub use keys::{AgentId, KeyError, KeyPair, SIGNATURE_LEN};
pub use layers::{LayerSet, SetSpec, UNREACHED};
pub use ledger::{Ledger, Limits, Live, Quota};
pub use members::MemberSet;
pub use reputation::{
    Exclusion, Hearing, REPORT_LEN, Rating, Report, Reputation, ReputationError, ReputationPolicy,
    SecondHand, Standing,
};
pub use search::{
    Scratch, Threshold, Walk, distance, reach, reach_count, reach_sizes, reach_threshold,
    reach_threshold_sizes, witness,
};
pub use web::{Membership, Web};
