//! The extension module `pandacore._core`: exports only.
mod broker;
mod detach;
mod error;
mod gossip;
mod matching;
mod reputation;
mod team;
mod trust;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::broker::{PyParams, PySemanticIndex, PySubset};

    #[pymodule_export]
    use crate::gossip::{
        PyNode, comparison_sizes, encode_announcement, py_hosting_message, py_team_identity,
        py_ticket_message, simulate_average, simulate_detection, simulate_false_deaths, simulate_faults,
        simulate_healing, simulate_idle, simulate_pauses, simulate_round, simulate_rumor, simulate_tree,
        team_anchor, time_replica, trust_record_key,
    };

    #[pymodule_export]
    use crate::matching::{
        PyAgentRecord, PyCapability, PyCertificate, PyMember, PyPreparedSpec, PyProbing, PyRegistry,
        PyRestored, PyTeam, PyViewer, simulate_balance,
    };

    #[pymodule_export]
    use crate::reputation::{PyReputation, open_report};

    #[pymodule_export]
    use crate::team::{
        PyLateBinding, PyTeamEffect, PyTeamEvent, PyTeamState, PyWorkerEffect, PyWorkerEvent, PyWorkerState,
    };

    #[pymodule_export]
    use crate::trust::{
        PyKeyPair, PySearch, PyTrust, collective_id, decode_record, did_of, parse_did, verify_record,
        verify_signature,
    };

    /// True when this build has optimisation on; benches refuse to run without it.
    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("RELEASE_BUILD", !cfg!(debug_assertions))?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
