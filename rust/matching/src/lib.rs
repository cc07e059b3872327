//! Registry, capability pools and team assembly.
//!
//! ```
//! use pandacore_matching::{Announcement, Attributes, Config, Registry, Requirement, Scratch, Team, TeamSpec};
//!
//! let registry = Registry::new(Config::default());
//! let search = registry.intern("search.web")?;
//! registry.announce(&Announcement {
//!     id: [7; 32],
//!     capabilities: &[search],
//!     version: Some(1),
//!     domain: 0,
//!     attributes: Attributes::default(),
//! })?;
//! let any_search = registry.intern("search")?;
//! let spec = TeamSpec { required: vec![Requirement { any: vec![any_search], count: 1 }], ..Default::default() };
//! let mut team = Team::default();
//! registry.assemble(&spec, None, 1, &mut Scratch::default(), &mut team);
//! assert!(team.complete());
//! assert_eq!(registry.id_of(team.picks[0].slot), Some([7; 32]));
//! # Ok::<(), pandacore_matching::RegistryError>(())
//! ```
mod assembly;
pub mod balance_sim;
pub mod broker;
mod bulk;
mod cover;
mod dedicated;
mod error;
mod exact;
mod hint;
mod index;
mod pages;
pub mod probing;
mod quick;
mod rcu;
mod registry;
mod rng;
pub mod score;
mod snapshot;
mod store;
pub mod team_machine;
mod viewer;
mod vocabulary;
mod window;

pub use assembly::{
    Hall, MAX_REQUIREMENTS, MAX_TEAM, Mode, NO_AGENT, Pick, Prepared, Quality, Requirement, Scratch,
    Shortage, Team, TeamSpec,
};
pub use bulk::Batch;
pub use error::RegistryError;
pub use registry::{Announcement, Config, MAX_HELD, MIN_TOMBSTONES, Memory, Placed, Record, Registry};
pub use rng::Rng;
pub use store::{ALIVE, Attributes, DRAINING, TRUSTED};
pub use viewer::Viewer;
pub use vocabulary::{MAX_NAME, Vocabulary};
