//! Binding of `pandacore_matching::broker`: the semantic index.
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pandacore_matching::broker::{
    BrokerError, Config, Costs, Executor, Found, Metric, Mode, Params, Rerank, SearchScratch, SemanticIndex,
    Subset,
};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::detach::off_gil;
use crate::error::BindingError;

import_exception!(pandacore.errors, ConfigError);
import_exception!(pandacore.errors, CorruptFile);
import_exception!(pandacore.errors, DimensionMismatch);
import_exception!(pandacore.errors, DuplicateId);
import_exception!(pandacore.errors, InvalidVector);
import_exception!(pandacore.errors, ModelMismatch);
import_exception!(pandacore.errors, ShapeError);
import_exception!(pandacore.errors, StateError);
import_exception!(pandacore.errors, UnknownId);

impl From<BrokerError> for BindingError {
    fn from(error: BrokerError) -> Self {
        let text = error.to_string();
        // A file's name is the place of the error, so it need not be in the message too.
        let at = |path: &std::path::Path, why: &String| (why.clone(), path.display().to_string());
        let (raised, place, hint) = match &error {
            BrokerError::Dimension { .. } => (
                DimensionMismatch::new_err(text),
                None,
                "embed with the model of the index",
            ),
            BrokerError::Length { .. } => (ShapeError::new_err(text), None, "pass one id for each row"),
            BrokerError::BadRows { .. } => (
                InvalidVector::new_err(text),
                None,
                "leave these rows out; nothing of the batch was used",
            ),
            BrokerError::DuplicateId(_) => (
                DuplicateId::new_err(text),
                None,
                "use update(), or add(..., replace=True)",
            ),
            BrokerError::UnknownId(_) => (UnknownId::new_err(text), None, "see index.ids()"),
            BrokerError::OutOfRange(_) => (
                ConfigError::new_err(text),
                None,
                "see the documentation of the argument",
            ),
            BrokerError::Full { .. } => (
                StateError::new_err(text),
                None,
                "split the vectors over several indexes",
            ),
            BrokerError::HalfFailed => (StateError::new_err(text), None, "load the last saved file"),
            BrokerError::Corrupt { path, why } => {
                let (why, path) = at(path, why);
                (
                    CorruptFile::new_err(why),
                    Some(path),
                    "restore the file from a backup, or build the index again",
                )
            }
            BrokerError::Model { .. } => (
                ModelMismatch::new_err(text),
                None,
                "embed with the model of the index",
            ),
            BrokerError::File { path, why } => {
                let (why, path) = at(path, why);
                (
                    ConfigError::new_err(why),
                    Some(path),
                    "check the path and its permissions",
                )
            }
        };
        Python::attach(|py| {
            let value = raised.value(py);
            let set = || -> PyResult<()> {
                value.setattr("hint", hint)?;
                value.setattr("where", place)?;
                match &error {
                    BrokerError::Dimension { expected, got, model } => {
                        value.setattr("expected", expected)?;
                        value.setattr("got", got)?;
                        value.setattr("model", model)
                    }
                    BrokerError::BadRows {
                        not_finite,
                        zero,
                        count,
                    } => {
                        let mut rows = [&not_finite[..], &zero[..]].concat();
                        rows.sort_unstable();
                        value.setattr("rows", PyTuple::new(py, rows)?)?;
                        value.setattr("count", count)
                    }
                    BrokerError::Model { expected, got } => {
                        value.setattr("expected", expected)?;
                        value.setattr("got", got)
                    }
                    _ => Ok(()),
                }
            };
            match set() {
                Ok(()) => raised.into(),
                Err(failed) => failed.into(),
            }
        })
    }
}

thread_local! {
    static SCRATCH: RefCell<SearchScratch> = RefCell::default();
}

/// Runs `work` with this thread's search memory.
fn with_scratch<R>(work: impl FnOnce(&mut SearchScratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        Err(_) => work(&mut SearchScratch::default()),
    })
}

/// What the steps of the executors cost here; measured at the first index of the process.
fn costs() -> Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    // The pure crates take the time from their caller, which is this.
    #[allow(clippy::disallowed_methods)]
    let measure = || {
        let start = Instant::now();
        Costs::measure(|| start.elapsed())
    };
    *COSTS.get_or_init(measure)
}

fn metric(name: &str) -> PyResult<Metric> {
    match name {
        "cosine" => Ok(Metric::Cosine),
        "ip" => Ok(Metric::InnerProduct),
        _ => Err(ConfigError::new_err(format!(
            "metric is {name:?}; it can be 'cosine' or 'ip'"
        ))),
    }
}

fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Cosine => "cosine",
        Metric::InnerProduct => "ip",
    }
}

fn rerank(name: &str) -> PyResult<Rerank> {
    match name {
        "f32" => Ok(Rerank::F32),
        "bf16" => Ok(Rerank::Bf16),
        "int16" => Ok(Rerank::Int16),
        "none" => Ok(Rerank::None),
        _ => Err(ConfigError::new_err(format!(
            "rerank is {name:?}; it can be 'f32', 'bf16', 'int16' or 'none'"
        ))),
    }
}

fn rerank_name(rerank: Rerank) -> &'static str {
    match rerank {
        Rerank::F32 => "f32",
        Rerank::Bf16 => "bf16",
        Rerank::Int16 => "int16",
        Rerank::None => "none",
    }
}

fn executor(name: &str) -> PyResult<Executor> {
    match name {
        "scan" => Ok(Executor::Scan),
        "batch" => Ok(Executor::Batch),
        "graph" => Ok(Executor::Graph),
        "two_hop" => Ok(Executor::TwoHop),
        _ => Err(ConfigError::new_err(format!(
            "executor is {name:?}; it can be 'scan', 'batch', 'graph' or 'two_hop'"
        ))),
    }
}

fn executor_name(executor: Executor) -> &'static str {
    match executor {
        Executor::Scan => "scan",
        Executor::Batch => "batch",
        Executor::Graph => "graph",
        Executor::TwoHop => "two_hop",
    }
}

/// The elements in place; the Python side has made the array contiguous.
fn flat<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array
        .as_slice()
        .map_err(|_| ShapeError::new_err("the array is not contiguous"))
}

/// A set of ids, prepared for filters.
#[pyclass(frozen, name = "SubsetCore", module = "pandacore._core")]
pub(crate) struct PySubset(Arc<Subset>);

#[pymethods]
impl PySubset {
    #[new]
    fn new(ids: PyReadonlyArray1<'_, u64>) -> PyResult<Self> {
        Ok(Self(Arc::new(Subset::new(flat(&ids)?.to_vec()))))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// What a query asks for, checked once.
#[pyclass(frozen, name = "SearchParams", module = "pandacore._core")]
pub(crate) struct PyParams {
    k: usize,
    ef: usize,
    recall: f32,
    threshold: Option<f32>,
    require: u32,
    forbid: u32,
    subset: Option<Arc<Subset>>,
    exclude: Vec<u64>,
    executor: Option<Executor>,
    rerank: usize,
}

#[pymethods]
impl PyParams {
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python constructor"
    )]
    #[new]
    #[pyo3(signature = (*, k, ef, recall, threshold, require, forbid, subset, exclude, executor, rerank))]
    fn new(
        k: usize,
        ef: usize,
        recall: f32,
        threshold: Option<f32>,
        require: u32,
        forbid: u32,
        subset: Option<&Bound<'_, PySubset>>,
        exclude: Option<PyReadonlyArray1<'_, u64>>,
        executor: Option<&str>,
        rerank: usize,
    ) -> PyResult<Self> {
        Ok(Self {
            k,
            ef,
            recall,
            threshold,
            require,
            forbid,
            subset: subset.map(|subset| Arc::clone(&subset.get().0)),
            exclude: exclude
                .as_ref()
                .map_or(Ok(Vec::new()), |ids| flat(ids).map(<[u64]>::to_vec))?,
            executor: executor.map(self::executor).transpose()?,
            rerank,
        })
    }
}

impl PyParams {
    fn params(&self) -> Params<'_> {
        Params {
            k: self.k,
            ef: self.ef,
            recall: self.recall,
            threshold: self.threshold,
            require: self.require,
            forbid: self.forbid,
            subset: self.subset.as_deref(),
            exclude: &self.exclude,
            executor: self.executor,
            rerank: self.rerank,
            interleave: true,
        }
    }
}

/// Ids, scores, version, executor, codes looked at.
type One<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<f32>>,
    u64,
    &'static str,
    usize,
);
type Many<'py> = (
    Bound<'py, PyArray2<i64>>,
    Bound<'py, PyArray2<f32>>,
    u64,
    &'static str,
    usize,
);

#[pyclass(frozen, name = "SemanticIndexCore", module = "pandacore._core")]
pub(crate) struct PySemanticIndex(SemanticIndex);

#[pymethods]
impl PySemanticIndex {
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python constructor"
    )]
    #[new]
    #[pyo3(signature = (*, dim, metric, rerank, m, ef_construction, flags, model, seed, consolidate_at))]
    fn new(
        dim: usize,
        metric: &str,
        rerank: &str,
        m: usize,
        ef_construction: usize,
        flags: Vec<String>,
        model: String,
        seed: u64,
        consolidate_at: f32,
    ) -> PyResult<Self> {
        let config = Config {
            dim,
            metric: self::metric(metric)?,
            rerank: self::rerank(rerank)?,
            m,
            ef_construction,
            flags,
            model,
            seed,
            consolidate_at,
        };
        Ok(Self(
            SemanticIndex::new(config, costs()).map_err(BindingError::from)?,
        ))
    }

    #[staticmethod]
    fn load(
        py: Python<'_>,
        path: std::path::PathBuf,
        dim: Option<usize>,
        model: Option<String>,
    ) -> PyResult<Self> {
        let loaded = off_gil(py, || SemanticIndex::load(&path, dim, model.as_deref(), costs()))?;
        Ok(Self(loaded))
    }

    fn save(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        Ok(off_gil(py, || self.0.save(&path))?)
    }

    #[getter]
    fn dim(&self) -> usize {
        self.0.config().dim
    }

    #[getter]
    fn metric(&self) -> &'static str {
        metric_name(self.0.config().metric)
    }

    #[getter]
    fn rerank(&self) -> &'static str {
        rerank_name(self.0.config().rerank)
    }

    #[getter]
    fn m(&self) -> usize {
        self.0.config().m
    }

    #[getter]
    fn ef_construction(&self) -> usize {
        self.0.config().ef_construction
    }

    #[getter]
    fn flag_names(&self) -> Vec<String> {
        self.0.config().flags.clone()
    }

    #[getter]
    fn model(&self) -> &str {
        &self.0.config().model
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version()
    }

    #[getter]
    fn buried(&self) -> usize {
        self.0.buried()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    #[getter]
    fn instruction_set(&self) -> &'static str {
        self.0.instruction_set()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn contains(&self, id: u64) -> bool {
        self.0.contains(id)
    }

    fn get<'py>(&self, py: Python<'py>, id: u64) -> Option<Bound<'py, PyArray1<f32>>> {
        self.0.get(id).map(|vector| vector.into_pyarray(py))
    }

    fn flags(&self, id: u64) -> Option<u32> {
        self.0.flags(id)
    }

    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let ids = off_gil(py, || Ok::<_, BrokerError>(self.0.all_ids()))?;
        Ok(ids.into_pyarray(py))
    }

    #[pyo3(signature = (ids, vectors, *, flags, mode, threads))]
    fn put(
        &self,
        py: Python<'_>,
        ids: PyReadonlyArray1<'_, u64>,
        vectors: PyReadonlyArray2<'_, f32>,
        flags: u32,
        mode: &str,
        threads: usize,
    ) -> PyResult<u64> {
        let mode = match mode {
            "add" => Mode::Add,
            "update" => Mode::Update,
            "put" => Mode::Put,
            _ => return Err(ConfigError::new_err(format!("mode is {mode:?}"))),
        };
        let (ids, dim) = (flat(&ids)?, vectors.as_array().ncols());
        let vectors = vectors
            .as_slice()
            .map_err(|_| ShapeError::new_err("the array is not contiguous"))?;
        Ok(off_gil(py, || {
            self.0.put(ids, vectors, dim, flags, mode, threads)
        })?)
    }

    fn remove(&self, py: Python<'_>, ids: PyReadonlyArray1<'_, u64>) -> PyResult<u64> {
        let ids = flat(&ids)?;
        Ok(off_gil(py, || self.0.remove(ids))?)
    }

    fn set_flag(
        &self,
        py: Python<'_>,
        flag: usize,
        ids: PyReadonlyArray1<'_, u64>,
        values: PyReadonlyArray1<'_, bool>,
    ) -> PyResult<()> {
        let (ids, values) = (flat(&ids)?, flat(&values)?);
        if ids.len() != values.len() {
            return Err(ShapeError::new_err(format!(
                "{} ids but {} values",
                ids.len(),
                values.len()
            )));
        }
        Ok(off_gil(py, || self.0.set_flag(flag, ids, |at| values[at]))?)
    }

    fn consolidate(&self, py: Python<'_>) -> PyResult<()> {
        Ok(off_gil(py, || self.0.consolidate())?)
    }

    fn search<'py>(
        &self,
        py: Python<'py>,
        query: PyReadonlyArray1<'py, f32>,
        params: &Bound<'py, PyParams>,
    ) -> PyResult<One<'py>> {
        let (query, params) = (flat(&query)?, params.get().params());
        let Found {
            ids,
            scores,
            version,
            executor,
            scored,
        } = off_gil(py, || {
            with_scratch(|scratch| self.0.search(query, &params, scratch))
        })?;
        let ids: Vec<i64> = ids.into_iter().map(|id| id as i64).collect();
        Ok((
            ids.into_pyarray(py),
            scores.into_pyarray(py),
            version,
            executor_name(executor),
            scored,
        ))
    }

    #[pyo3(signature = (queries, params, *, threads, interleave))]
    fn search_batch<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        params: &Bound<'py, PyParams>,
        threads: usize,
        interleave: bool,
    ) -> PyResult<Many<'py>> {
        let (rows, dim) = queries.as_array().dim();
        let params = Params {
            interleave,
            ..params.get().params()
        };
        let queries = queries
            .as_slice()
            .map_err(|_| ShapeError::new_err("the array is not contiguous"))?;
        let (ids, scores, k, head) = off_gil(py, || {
            with_scratch(|scratch| {
                let found = self.0.search_batch(queries, dim, &params, threads, scratch)?;
                let k = found.iter().map(|one| one.ids.len()).max().unwrap_or(0);
                let mut ids = vec![-1i64; rows * k];
                let mut scores = vec![f32::NEG_INFINITY; rows * k];
                for (row, one) in found.iter().enumerate() {
                    for (at, (&id, &score)) in one.ids.iter().zip(&one.scores).enumerate() {
                        ids[row * k + at] = id as i64;
                        scores[row * k + at] = score;
                    }
                }
                let scored = found.iter().map(|one| one.scored).sum::<usize>();
                let head = found
                    .first()
                    .map(|one| (one.version, executor_name(one.executor), scored));
                Ok::<_, BrokerError>((ids, scores, k, head))
            })
        })?;
        let (version, executor, scored) = head.unwrap_or((self.0.version(), "scan", 0));
        let shape = [rows, k];
        let ids = ids.into_pyarray(py).reshape(shape)?;
        let scores = scores.into_pyarray(py).reshape(shape)?;
        Ok((ids, scores, version, executor, scored))
    }
}
