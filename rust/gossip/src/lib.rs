//! Membership, failure detection and replication between the hosts of a collective, without I/O.
//!
//! A [`Node`] is a state machine: the caller feeds it time, random numbers and what arrived, and carries out what
//! it asks for. The same machine runs under the QUIC driver, in the simulator ([`sim`]) and in tests.
//!
//! Two levels: *hosts* (processes) probe each other and replicate logs; *agents* are rows of their host's signed
//! log and cost no probe, heartbeat or digest entry.
mod announcement;
mod batch;
pub mod cohort;
#[cfg(test)]
mod forgery;
mod host;
mod node;
mod queue;
pub mod riblt;
pub mod sim;
mod store;
mod swim;
mod table;
mod wire;

pub use announcement::{Announcement, BadAnnouncement, MAX_CAPABILITIES, Subscription, hosting_message};
pub use batch::{
    BatchError, BatchView, Entry, Leaf, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_PAYLOAD, Record, RecordKind,
};
pub use host::{Claim, Crypto, Ed25519, HostId, HostRecord, Short, Sig};
pub use node::{
    Command, Config, Counters, Delta, Input, JoinState, Node, Offer, Output, Reject, Request, StopReason,
};
pub use queue::{Class, OutQueue, Pushed};
pub use store::{Agent, Digest, LogPosition, Replica, RowChange, StoreMemory};
pub use swim::{MemberView, State, SwimConfig, Transition};
pub use wire::{
    FRAME_HEADER, Frame, Hello, Kind, MAX_FRAME, VERSION, WireError, comparison_sizes, hello_bytes,
    read_hello,
};
