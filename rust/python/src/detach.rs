//! The only place that leaves the interpreter.
use pyo3::Python;

use crate::error::BindingError;

/// Runs `work` with the interpreter released.
pub(crate) fn off_gil<T, E>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, BindingError>
where
    T: Send,
    E: Into<BindingError> + Send,
{
    py.detach(work).map_err(Into::into)
}
