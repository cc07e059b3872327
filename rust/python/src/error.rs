//! One error type for the whole binding: the orphan rule forbids `From<CoreError> for PyErr` here.
use pyo3::PyErr;

/// A refusal of a pure crate, already turned into the exception of `pandacore.errors` that names it.
pub(crate) struct BindingError(PyErr);

impl From<BindingError> for PyErr {
    fn from(error: BindingError) -> Self {
        error.0
    }
}

impl From<PyErr> for BindingError {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}
