//! What the registry and the assembly refuse. The registry is unchanged in every case.
use std::fmt;

/// Why a call was refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RegistryError {
    /// A capability or tag name breaks the naming rule.
    InvalidName {
        /// The name, cut at 80 characters.
        name: String,
        /// Which part of the rule it breaks.
        why: &'static str,
    },
    /// A capability handle that this registry never gave out.
    UnknownCapability(u32),
    /// A slot that holds no agent now.
    UnknownSlot(u32),
    /// An id that is not registered.
    UnknownAgent([u8; 32]),
    /// One id occurs twice in a batch.
    DuplicateId {
        /// Row of the first occurrence.
        first: usize,
        /// Row of the second.
        second: usize,
    },
    /// More capabilities (parents and tags included) than one agent may have.
    TooManyCapabilities {
        /// How many it has.
        have: usize,
        /// The limit.
        max: usize,
    },
    /// Columns of a batch differ in length, or offsets are not ascending from 0 to the number of capabilities.
    Shape(String),
    /// A number is outside its range.
    OutOfRange {
        /// Name of the argument.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest allowed one.
        max: u64,
    },
    /// The 2^32 - 2 slots are used up.
    Full,
    /// A snapshot is damaged, cut off or not one of ours.
    Corrupt(String),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidName { name, why } => write!(f, "the name {name:?} is not allowed: {why}"),
            Self::UnknownCapability(handle) => write!(f, "no capability has the handle {handle}"),
            Self::UnknownSlot(slot) => write!(f, "no agent is in slot {slot}"),
            Self::UnknownAgent(id) => {
                f.write_str("no agent is registered under ")?;
                id.iter().take(8).try_for_each(|b| write!(f, "{b:02x}"))?;
                f.write_str("…")
            }
            Self::DuplicateId { first, second } => {
                write!(f, "rows {first} and {second} of the batch have the same id")
            }
            Self::TooManyCapabilities { have, max } => {
                write!(
                    f,
                    "an agent has {have} capabilities, parents and tags included; at most {max} fit"
                )
            }
            Self::Shape(text) | Self::Corrupt(text) => f.write_str(text),
            Self::OutOfRange { what, value, max } => write!(f, "{what} is {value}; at most {max}"),
            Self::Full => f.write_str("the registry is full"),
        }
    }
}

impl std::error::Error for RegistryError {}
