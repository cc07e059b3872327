//! Semantic routing: the nearest vectors under filters, while vectors come, change and go.
//!
//! One store of slots, three ways to search it, and a planner that picks one for each query:
//! * [`Executor::Scan`] looks at every allowed byte code, and orders the best exactly.
//! * [`Executor::Batch`] does so for several queries at once.
//! * [`Executor::Graph`] and [`Executor::TwoHop`] follow a navigable small world.
//!
//! ```
//! use pandacore_matching::broker::{Config, Costs, Mode, Params, SearchScratch, SemanticIndex};
//!
//! let index = SemanticIndex::new(Config::new(3), Costs::default())?;
//! index.put(&[7, 8], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 3, 0, Mode::Add, 1)?;
//! let found = index.search(&[0.9, 0.1, 0.0], &Params { k: 1, ..Params::default() }, &mut SearchScratch::default())?;
//! assert_eq!(found.ids, [7]);
//! # Ok::<(), pandacore_matching::broker::BrokerError>(())
//! ```
mod epoch;
mod error;
mod graph;
mod ids;
mod index;
mod kernels;
mod memory;
mod persist;
mod planner;
mod rotate;
mod scan;
mod store;
mod sync;
#[cfg(test)]
mod tests;

pub use error::BrokerError;
pub use index::{Config, Found, MAX_DIM, MAX_FLAGS, Mode, Params, SearchScratch, SemanticIndex, Subset};
pub use planner::{Costs, Executor};
pub use store::{Metric, Rerank};
