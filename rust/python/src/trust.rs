//! Binding of `pandacore_trust`: keys.
use pandacore_trust::{AgentId, KeyError, KeyPair, SIGNATURE_LEN};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::BindingError;

import_exception!(pandacore.errors, InvalidKey);

impl From<KeyError> for BindingError {
    fn from(error: KeyError) -> Self {
        InvalidKey::new_err(error.to_string()).into()
    }
}

#[pyclass(frozen, name = "KeyPair", module = "pandacore._core")]
pub(crate) struct PyKeyPair(KeyPair);

#[pymethods]
impl PyKeyPair {
    #[new]
    fn new(seed: [u8; 32]) -> Self {
        Self(KeyPair::from_seed(&seed))
    }

    #[getter]
    fn public(&self) -> [u8; 32] {
        self.0.id().0
    }

    fn seed(&self) -> [u8; 32] {
        self.0.seed()
    }

    fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message)
    }
}

/// True when `signature` is one of `message` by the key; false for anything else, also for a malformed key.
#[pyfunction]
pub(crate) fn verify_signature(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    AgentId::from_public(public).is_ok_and(|id| id.verify(message, signature).is_ok())
}

#[pyfunction]
pub(crate) fn did_of(public: &[u8]) -> Result<String, BindingError> {
    Ok(AgentId::from_public(public)?.to_string())
}

#[pyfunction]
pub(crate) fn parse_did<'py>(py: Python<'py>, text: &str) -> Result<Bound<'py, PyBytes>, BindingError> {
    Ok(PyBytes::new(py, &text.parse::<AgentId>()?.0))
}
