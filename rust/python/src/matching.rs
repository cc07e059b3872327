//! Binding of `pandacore_matching`: registry and team assembly.
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pandacore_matching::balance_sim::{Balancer, Setting, simulate};
use pandacore_matching::probing::{Advice, Candidate, Policy, Probing, queue_limit};
use pandacore_matching::score::{rtt_code, rtt_seconds, service_code, service_seconds};
use pandacore_matching::{
    ALIVE, Announcement, Attributes, Batch, Config, DRAINING, MAX_REQUIREMENTS, MAX_TEAM, Mode, Prepared,
    Quality, Registry, RegistryError, Requirement, Rng, Scratch, Shortage, TRUSTED, Team, TeamSpec, Viewer,
};
use pyo3::exceptions::PyTypeError;
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::detach::off_gil;
use crate::error::BindingError;

import_exception!(pandacore.errors, ConfigError);
import_exception!(pandacore.errors, CorruptFile);
import_exception!(pandacore.errors, DuplicateId);
import_exception!(pandacore.errors, InvalidName);
import_exception!(pandacore.errors, ShapeError);
import_exception!(pandacore.errors, StateError);
import_exception!(pandacore.errors, UnknownAgent);
import_exception!(pandacore.errors, UnknownCapability);

/// A capability name that is in no vocabulary: nobody holds it.
const NOBODY: u32 = u32::MAX;

impl From<RegistryError> for BindingError {
    fn from(error: RegistryError) -> Self {
        let text = error.to_string();
        match error {
            RegistryError::InvalidName { .. } => InvalidName::new_err(text),
            RegistryError::UnknownCapability(_) => UnknownCapability::new_err(text),
            RegistryError::UnknownSlot(_) | RegistryError::UnknownAgent(_) => UnknownAgent::new_err(text),
            RegistryError::DuplicateId { .. } => DuplicateId::new_err(text),
            RegistryError::Shape(_) => ShapeError::new_err(text),
            RegistryError::TooManyCapabilities { .. } | RegistryError::OutOfRange { .. } => {
                ConfigError::new_err(text)
            }
            RegistryError::Full => StateError::new_err(text),
            RegistryError::Corrupt(_) => CorruptFile::new_err(text),
        }
        .into()
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs `work` with this thread's assembly memory.
fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        Err(_) => work(&mut Scratch::default()),
    })
}

fn agent_id(bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| ShapeError::new_err(format!("an agent id has 32 bytes, this one {}", bytes.len())))
}

fn mode(name: &str) -> PyResult<Mode> {
    match name {
        "dedicated" => Ok(Mode::Dedicated),
        "consolidated" => Ok(Mode::Consolidated),
        _ => Err(ConfigError::new_err(format!(
            "mode is {name:?}; it can be 'dedicated' or 'consolidated'"
        ))),
    }
}

fn quality(name: &str) -> PyResult<Quality> {
    match name {
        "fast" => Ok(Quality::Fast),
        "best" => Ok(Quality::Best),
        "optimal" => Ok(Quality::Optimal),
        _ => Err(ConfigError::new_err(format!(
            "quality is {name:?}; it can be 'fast', 'best' or 'optimal'"
        ))),
    }
}

fn seconds(what: &str, value: Option<f64>) -> PyResult<f64> {
    match value {
        None => Ok(0.0),
        Some(s) if s.is_finite() && s >= 0.0 => Ok(s),
        Some(s) => Err(ConfigError::new_err(format!(
            "{what} is {s}; it must be finite and not negative"
        ))),
    }
}

/// A capability of one registry, resolved once.
#[pyclass(frozen, name = "Capability", module = "pandacore._core")]
pub(crate) struct PyCapability {
    registry: Arc<Registry>,
    handle: u32,
    name: Py<PyString>,
}

#[pymethods]
impl PyCapability {
    #[getter]
    fn name(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    #[getter]
    fn index(&self) -> u32 {
        self.handle
    }

    fn __index__(&self) -> u32 {
        self.handle
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            self.handle == other.handle && Arc::ptr_eq(&self.registry, &other.registry)
        })
    }

    fn __hash__(&self) -> u64 {
        u64::from(self.handle)
    }

    fn __str__(&self, py: Python<'_>) -> Py<PyString> {
        self.name.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Capability({})", self.name.bind(py).repr()?))
    }
}

/// What names a registered agent: its id or its slot.
#[derive(FromPyObject)]
enum Agent<'py> {
    #[pyo3(transparent)]
    Id(Bound<'py, PyBytes>),
    #[pyo3(transparent)]
    Slot(u32),
}

/// What names a capability: its handle or its name.
#[derive(FromPyObject)]
enum Named<'py> {
    #[pyo3(transparent)]
    Handle(PyRef<'py, PyCapability>),
    #[pyo3(transparent)]
    Name(Bound<'py, PyString>),
}

/// The registry of agents; see `pandacore.registry.Registry`.
#[pyclass(frozen, subclass, name = "RegistryCore", module = "pandacore._core")]
pub(crate) struct PyRegistry(Arc<Registry>);

impl PyRegistry {
    /// The registry itself, for what feeds it without Python.
    pub(crate) fn shared(&self) -> Arc<Registry> {
        Arc::clone(&self.0)
    }

    fn slot(&self, agent: &Agent<'_>) -> PyResult<u32> {
        match agent {
            Agent::Slot(slot) => Ok(*slot),
            Agent::Id(id) => {
                let id = agent_id(id.as_bytes())?;
                match self.0.slot_of(&id) {
                    Some(slot) => Ok(slot),
                    None => Err(PyErr::from(BindingError::from(RegistryError::UnknownAgent(id)))),
                }
            }
        }
    }

    fn handle(&self, name: &Named<'_>) -> PyResult<u32> {
        match name {
            Named::Handle(capability) if Arc::ptr_eq(&capability.registry, &self.0) => Ok(capability.handle),
            Named::Handle(_) => Err(StateError::new_err("the capability belongs to another registry")),
            Named::Name(name) => {
                let name = name.to_str()?;
                if name.starts_with('#') {
                    return Err(InvalidName::new_err(format!(
                        "the name {name:?} is not allowed: '#' marks tags"
                    )));
                }
                Ok(self.0.intern(name).map_err(BindingError::from)?)
            }
        }
    }
}

#[pymethods]
impl PyRegistry {
    #[new]
    #[pyo3(signature = (*, seed = 0, signatures = true, trust_by_default = true, restored = None))]
    fn new(
        seed: u64,
        signatures: bool,
        trust_by_default: bool,
        restored: Option<&PyRestored>,
    ) -> PyResult<Self> {
        let registry = match restored {
            None => Registry::new(Config {
                seed,
                signatures,
                trust_by_default,
            }),
            Some(read) => read
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
                .ok_or_else(|| StateError::new_err("this snapshot was taken over by a registry already"))?,
        };
        Ok(Self(Arc::new(registry)))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __contains__(&self, agent: &Bound<'_, PyAny>) -> bool {
        let Ok(id) = agent.cast::<PyBytes>() else {
            return false;
        };
        agent_id(id.as_bytes()).is_ok_and(|id| self.0.slot_of(&id).is_some())
    }

    #[getter]
    fn slots(&self) -> u32 {
        self.0.slots()
    }

    fn capability(&self, py: Python<'_>, name: Named<'_>) -> PyResult<PyCapability> {
        let handle = self.handle(&name)?;
        let name = self.0.name(handle).unwrap_or_default();
        Ok(PyCapability {
            registry: Arc::clone(&self.0),
            handle,
            name: PyString::intern(py, &name).unbind(),
        })
    }

    fn capabilities(&self) -> Vec<String> {
        self.0.vocabulary(false)
    }

    fn tags(&self) -> Vec<String> {
        self.0.vocabulary(true)
    }

    #[pyo3(signature = (
        agent_id, capabilities, *, version = None, load = 0, domain = 0, cost = 0, service_s = None, rtt_s = None,
        concurrency = 1, tags = Vec::new()
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn announce(
        &self,
        agent_id: &[u8],
        capabilities: Vec<Named<'_>>,
        version: Option<u64>,
        load: u32,
        domain: u16,
        cost: u16,
        service_s: Option<f64>,
        rtt_s: Option<f64>,
        concurrency: u8,
        tags: Vec<String>,
    ) -> PyResult<u32> {
        let id = self::agent_id(agent_id)?;
        let mut handles = Vec::with_capacity(capabilities.len() + tags.len());
        for name in &capabilities {
            handles.push(self.handle(name)?);
        }
        for tag in &tags {
            handles.push(self.0.intern(&format!("#{tag}")).map_err(BindingError::from)?);
        }
        let attributes = Attributes {
            load: load.min(u32::from(u16::MAX)) as u16,
            service: service_code(seconds("service_s", service_s)?),
            cost,
            rtt: rtt_code(seconds("rtt_s", rtt_s)?),
            concurrency,
        };
        let announcement = Announcement {
            id,
            capabilities: &handles,
            version,
            domain,
            attributes,
        };
        Ok(self.0.announce(&announcement).map_err(BindingError::from)?.slot)
    }

    #[pyo3(signature = (ids, offsets, capabilities, *, versions, loads, domains, costs, services, rtts, concurrency, alive, trusted))]
    #[expect(clippy::too_many_arguments, reason = "columns of one batch")]
    fn announce_columns<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray2<'py, u8>,
        offsets: PyReadonlyArray1<'py, i64>,
        capabilities: PyReadonlyArray1<'py, u32>,
        versions: Option<PyReadonlyArray1<'py, u64>>,
        loads: Option<PyReadonlyArray1<'py, u16>>,
        domains: Option<PyReadonlyArray1<'py, u16>>,
        costs: Option<PyReadonlyArray1<'py, u16>>,
        services: Option<PyReadonlyArray1<'py, f64>>,
        rtts: Option<PyReadonlyArray1<'py, f64>>,
        concurrency: Option<PyReadonlyArray1<'py, u8>>,
        alive: Option<PyReadonlyArray1<'py, bool>>,
        trusted: Option<PyReadonlyArray1<'py, bool>>,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (rows, rest) = ids.as_slice()?.as_chunks::<32>();
        if !rest.is_empty() {
            return Err(ShapeError::new_err("ids must have 32 bytes a row"));
        }
        let services = match &services {
            Some(column) => Some(
                column
                    .as_slice()?
                    .iter()
                    .map(|&s| service_code(s))
                    .collect::<Vec<_>>(),
            ),
            None => None,
        };
        let rtts = match &rtts {
            Some(column) => Some(
                column
                    .as_slice()?
                    .iter()
                    .map(|&s| rtt_code(s))
                    .collect::<Vec<_>>(),
            ),
            None => None,
        };
        let batch = Batch {
            ids: rows,
            offsets: offsets.as_slice()?,
            capabilities: capabilities.as_slice()?,
            versions: versions.as_ref().map(|c| c.as_slice()).transpose()?,
            loads: loads.as_ref().map(|c| c.as_slice()).transpose()?,
            domains: domains.as_ref().map(|c| c.as_slice()).transpose()?,
            costs: costs.as_ref().map(|c| c.as_slice()).transpose()?,
            services: services.as_deref(),
            rtts: rtts.as_deref(),
            concurrency: concurrency.as_ref().map(|c| c.as_slice()).transpose()?,
            alive: alive.as_ref().map(|c| c.as_slice()).transpose()?,
            trusted: trusted.as_ref().map(|c| c.as_slice()).transpose()?,
        };
        let slots = off_gil(py, || self.0.announce_many(&batch))?;
        Ok(slots.into_pyarray(py))
    }

    #[pyo3(signature = (agent_id, *, version = None))]
    fn withdraw(&self, agent_id: &[u8], version: Option<u64>) -> Result<bool, BindingError> {
        Ok(self.0.withdraw(&self::agent_id(agent_id)?, version)?)
    }

    fn set_load(&self, agent: Agent<'_>, load: u32) -> PyResult<()> {
        let slot = self.slot(&agent)?;
        Ok(self
            .0
            .set_load(slot, load.min(u32::from(u16::MAX)) as u16)
            .map_err(BindingError::from)?)
    }

    fn set_load_columns(
        &self,
        py: Python<'_>,
        slots: PyReadonlyArray1<'_, u32>,
        loads: PyReadonlyArray1<'_, u16>,
    ) -> PyResult<()> {
        let (slots, loads) = (slots.as_slice()?, loads.as_slice()?);
        Ok(off_gil(py, || self.0.set_loads(slots, loads))?)
    }

    #[pyo3(signature = (agent, *, service_s = None, rtt_s = None, cost = None, concurrency = None))]
    fn set_speed(
        &self,
        agent: Agent<'_>,
        service_s: Option<f64>,
        rtt_s: Option<f64>,
        cost: Option<u16>,
        concurrency: Option<u8>,
    ) -> PyResult<()> {
        let slot = self.slot(&agent)?;
        let service = service_s
            .map(|s| seconds("service_s", Some(s)))
            .transpose()?
            .map(service_code);
        let rtt = rtt_s
            .map(|s| seconds("rtt_s", Some(s)))
            .transpose()?
            .map(rtt_code);
        let change = |a: &mut Attributes| {
            a.service = service.unwrap_or(a.service);
            a.rtt = rtt.unwrap_or(a.rtt);
            a.cost = cost.unwrap_or(a.cost);
            a.concurrency = concurrency.unwrap_or(a.concurrency);
        };
        Ok(self.0.update(slot, change).map_err(BindingError::from)?)
    }

    fn set_alive(&self, agent: Agent<'_>, alive: bool) -> PyResult<()> {
        let slot = self.slot(&agent)?;
        Ok(self.0.set_flags(slot, ALIVE, alive).map_err(BindingError::from)?)
    }

    fn set_trusted(&self, agent: Agent<'_>, trusted: bool) -> PyResult<()> {
        let slot = self.slot(&agent)?;
        Ok(self
            .0
            .set_flags(slot, TRUSTED, trusted)
            .map_err(BindingError::from)?)
    }

    fn set_draining(&self, agent: Agent<'_>, draining: bool) -> PyResult<()> {
        let slot = self.slot(&agent)?;
        Ok(self
            .0
            .set_flags(slot, DRAINING, draining)
            .map_err(BindingError::from)?)
    }

    fn set_flag_columns(
        &self,
        py: Python<'_>,
        flag: &str,
        slots: PyReadonlyArray1<'_, u32>,
        values: PyReadonlyArray1<'_, bool>,
    ) -> PyResult<()> {
        let flag = match flag {
            "alive" => ALIVE,
            "trusted" => TRUSTED,
            "draining" => DRAINING,
            _ => return Err(ConfigError::new_err(format!("no flag is called {flag:?}"))),
        };
        let (slots, values) = (slots.as_slice()?, values.as_slice()?);
        Ok(off_gil(py, || self.0.set_flags_many(slots, flag, values))?)
    }

    fn set_trusted_words(&self, py: Python<'_>, bitmap: PyReadonlyArray1<'_, u64>) -> PyResult<()> {
        let bitmap = bitmap.as_slice()?;
        off_gil(py, || {
            self.0.set_trusted_bitmap(bitmap);
            Ok::<_, RegistryError>(())
        })?;
        Ok(())
    }

    fn slot_of(&self, agent_id: &[u8]) -> PyResult<Option<u32>> {
        Ok(self.0.slot_of(&self::agent_id(agent_id)?))
    }

    fn id_of<'py>(&self, py: Python<'py>, slot: u32) -> PyResult<Bound<'py, PyBytes>> {
        match self.0.id_of(slot) {
            Some(id) => Ok(PyBytes::new(py, &id)),
            None => Err(PyErr::from(BindingError::from(RegistryError::UnknownSlot(slot)))),
        }
    }

    fn holders<'py>(&self, py: Python<'py>, capability: Named<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let handle = match &capability {
            Named::Name(name) => self.0.find(name.to_str()?),
            Named::Handle(_) => Some(self.handle(&capability)?),
        };
        let slots = handle.map_or_else(Vec::new, |handle| self.0.holders(handle));
        Ok(slots
            .iter()
            .filter_map(|&s| self.0.id_of(s))
            .map(|id| PyBytes::new(py, &id))
            .collect())
    }

    fn available(&self, capability: Named<'_>) -> PyResult<u32> {
        let handle = match &capability {
            Named::Name(name) => self.0.find(name.to_str()?),
            Named::Handle(_) => Some(self.handle(&capability)?),
        };
        Ok(handle.map_or(0, |handle| self.0.available(handle)))
    }

    fn get(&self, py: Python<'_>, agent: Agent<'_>) -> PyResult<Option<PyAgentRecord>> {
        let slot = match &agent {
            Agent::Slot(slot) => Some(*slot),
            Agent::Id(id) => self.0.slot_of(&agent_id(id.as_bytes())?),
        };
        let Some(record) = slot.and_then(|slot| self.0.record(slot)) else {
            return Ok(None);
        };
        let mut names: Vec<String> = record.held.iter().filter_map(|&c| self.0.name(c)).collect();
        names.sort();
        let tags: Vec<String> = names
            .iter()
            .filter_map(|n| n.strip_prefix('#'))
            .map(str::to_owned)
            .collect();
        names.retain(|n| !n.starts_with('#'));
        // Parents are implied: naming them again says nothing.
        let own: Vec<&String> = names
            .iter()
            .filter(|n| {
                !names
                    .iter()
                    .any(|m| m.starts_with(*n) && m[n.len()..].starts_with('.'))
            })
            .collect();
        Ok(Some(PyAgentRecord {
            agent_id: PyBytes::new(py, &record.id).unbind(),
            slot: record.slot,
            version: record.version,
            capabilities: PyTuple::new(py, own)?.unbind(),
            tags: PyTuple::new(py, tags)?.unbind(),
            load: record.attributes.load,
            domain: record.domain,
            cost: record.attributes.cost,
            service_s: service_seconds(record.attributes.service),
            rtt_s: rtt_seconds(record.attributes.rtt),
            concurrency: record.attributes.concurrency.max(1),
            score: record.attributes.score(),
            alive: record.flags & ALIVE != 0,
            trusted: record.flags & TRUSTED != 0,
            draining: record.flags & DRAINING != 0,
        }))
    }

    #[pyo3(signature = (
        required, *, mode, quality, probes, domain_cap, cost_cap, tags, exclude, must_include
    ))]
    #[expect(clippy::too_many_arguments, reason = "fields of one specification")]
    fn prepare_spec(
        &self,
        required: Vec<(Vec<String>, u32)>,
        mode: &str,
        quality: &str,
        probes: u32,
        domain_cap: Option<u32>,
        cost_cap: Option<u64>,
        tags: Vec<String>,
        exclude: Vec<Vec<u8>>,
        must_include: Vec<Vec<u8>>,
    ) -> PyResult<PyPreparedSpec> {
        if required.len() > MAX_REQUIREMENTS {
            let text = format!(
                "{} capabilities asked for; at most {MAX_REQUIREMENTS} fit a team",
                required.len()
            );
            return Err(ConfigError::new_err(text));
        }
        let total: u64 = required.iter().map(|r| u64::from(r.1)).sum();
        if total > u64::from(MAX_TEAM) {
            return Err(ConfigError::new_err(format!(
                "{total} agents asked for; at most {MAX_TEAM} fit a team"
            )));
        }
        let ids = |list: Vec<Vec<u8>>| list.iter().map(|id| agent_id(id)).collect::<PyResult<Vec<_>>>();
        let template = Template {
            mode: self::mode(mode)?,
            quality: self::quality(quality)?,
            probes,
            domain_cap,
            cost_cap,
            tags,
            exclude: ids(exclude)?,
            must_include: ids(must_include)?,
            required,
        };
        let inner = Arc::new(template.resolve(&self.0)?);
        Ok(PyPreparedSpec {
            current: Mutex::new(Arc::clone(&inner)),
            inner,
        })
    }

    /// Assembles a prepared specification.
    #[pyo3(signature = (spec, seed = None, trusted = None))]
    fn assemble_prepared(
        &self,
        py: Python<'_>,
        spec: &Bound<'_, PyPreparedSpec>,
        seed: Option<u64>,
        trusted: Option<PyReadonlyArray1<'_, u64>>,
    ) -> PyResult<PyTeam> {
        let spec = spec.get();
        if !Arc::ptr_eq(&spec.inner.registry, &self.0) {
            return Err(StateError::new_err(
                "the specification was prepared for another registry",
            ));
        }
        let bitmap = trusted.as_ref().map(|words| words.as_slice()).transpose()?;
        spec.run(py, seed, bitmap)
    }

    #[pyo3(signature = (capabilities, per_capability, probes, seed))]
    #[expect(clippy::type_complexity, reason = "two arrays")]
    fn assemble_rows<'py>(
        &self,
        py: Python<'py>,
        capabilities: PyReadonlyArray2<'py, u32>,
        per_capability: u32,
        probes: u32,
        seed: Option<u64>,
    ) -> PyResult<(Bound<'py, PyArray2<u32>>, Bound<'py, PyArray1<bool>>)> {
        let shape = capabilities.as_array().dim();
        let rows = capabilities.as_slice()?;
        let seed = seed.unwrap_or_else(|| self.0.next_seed());
        let width = shape.1 * per_capability as usize;
        let (slots, complete) = off_gil(py, || {
            let mut scratch = Scratch::default();
            self.0
                .assemble_many(rows, shape.1, per_capability, probes, seed, &mut scratch)
        })?;
        let slots = slots.into_pyarray(py).reshape([shape.0, width])?;
        Ok((slots, complete.into_pyarray(py)))
    }

    fn snapshot_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = off_gil(py, || Ok::<_, RegistryError>(self.0.snapshot()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Checks and reads a snapshot, for the constructor.
    #[staticmethod]
    fn restore_bytes(py: Python<'_>, data: &[u8]) -> PyResult<PyRestored> {
        let registry = off_gil(py, || Registry::restore(data))?;
        Ok(PyRestored(Mutex::new(Some(registry))))
    }

    /// Nanoseconds per call of the Rust API, for benchmarks: one sample per `chunk` calls. Each row is prepared once;
    /// the calls go round the rows, once if `calls` is not given.
    #[pyo3(signature = (capabilities, *, mode, per_capability, probes, chunk, seed, calls=None))]
    #[expect(clippy::too_many_arguments, reason = "the conditions of one measurement")]
    #[expect(
        clippy::disallowed_methods,
        reason = "measuring is what it is for; nothing else reads this clock"
    )]
    fn time_assembly<'py>(
        &self,
        py: Python<'py>,
        capabilities: PyReadonlyArray2<'py, u32>,
        mode: &str,
        per_capability: u32,
        probes: u32,
        chunk: usize,
        seed: u64,
        calls: Option<usize>,
    ) -> PyResult<(Bound<'py, PyArray1<f64>>, f64)> {
        let width = capabilities.as_array().dim().1;
        let mode = self::mode(mode)?;
        let specs: Vec<Prepared> = capabilities
            .as_slice()?
            .chunks_exact(width.max(1))
            .map(|row| {
                Prepared::from(TeamSpec {
                    required: row
                        .iter()
                        .map(|&c| Requirement {
                            any: vec![c],
                            count: per_capability,
                        })
                        .collect(),
                    mode,
                    probes,
                    ..TeamSpec::default()
                })
            })
            .collect();
        let (samples, members) = off_gil(py, || {
            let mut scratch = Scratch::default();
            let mut team = Team::default();
            let calls = if specs.is_empty() {
                0
            } else {
                calls.unwrap_or(specs.len())
            };
            let chunk = chunk.max(1);
            let mut samples = Vec::with_capacity(calls.div_ceil(chunk));
            let mut seed = seed;
            let mut members = 0usize;
            let mut round = specs.iter().cycle();
            for first in (0..calls).step_by(chunk) {
                let group = chunk.min(calls - first);
                let start = std::time::Instant::now();
                for spec in round.by_ref().take(group) {
                    seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
                    self.0
                        .assemble_prepared(spec, None, seed, &mut scratch, &mut team);
                    members += team.picks.len();
                }
                samples.push(start.elapsed().as_nanos() as f64 / group as f64);
            }
            Ok::<_, RegistryError>((samples, members as f64 / calls.max(1) as f64))
        })?;
        Ok((samples.into_pyarray(py), members))
    }

    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let memory = self.0.memory();
        let dict = PyDict::new(py);
        dict.set_item("lines", memory.lines)?;
        dict.set_item("pools", memory.pools)?;
        dict.set_item("signatures", memory.signatures)?;
        dict.set_item("ids", memory.ids)?;
        dict.set_item("index", memory.index)?;
        dict.set_item("spare", memory.spare)?;
        Ok(dict)
    }
}

/// One viewer's verdicts on the agents of a registry; see `pandacore.registry.Viewer`.
#[pyclass(frozen, subclass, name = "ViewerCore", module = "pandacore._core")]
pub(crate) struct PyViewer {
    registry: Arc<Registry>,
    viewer: Mutex<Viewer>,
}

impl PyViewer {
    fn lock(&self) -> MutexGuard<'_, Viewer> {
        self.viewer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyViewer {
    #[new]
    fn new(registry: &PyRegistry) -> Self {
        Self {
            registry: registry.shared(),
            viewer: Mutex::new(Viewer::new(&registry.0)),
        }
    }

    fn set_trusted_columns(
        &self,
        py: Python<'_>,
        slots: PyReadonlyArray1<'_, u32>,
        values: PyReadonlyArray1<'_, bool>,
    ) -> PyResult<()> {
        let (slots, values) = (slots.as_slice()?, values.as_slice()?);
        Ok(off_gil(py, || self.lock().set(&self.registry, slots, values))?)
    }

    fn trusts_slot(&self, slot: u32) -> bool {
        self.lock().trusts(&self.registry, slot)
    }

    /// How many agents it trusts.
    fn __len__(&self) -> usize {
        self.lock().count(&self.registry) as usize
    }

    fn __bool__(&self) -> bool {
        true
    }

    #[pyo3(signature = (spec, seed = None))]
    fn assemble_prepared(
        &self,
        py: Python<'_>,
        spec: &Bound<'_, PyPreparedSpec>,
        seed: Option<u64>,
    ) -> PyResult<PyTeam> {
        let spec = spec.get();
        if !Arc::ptr_eq(&spec.inner.registry, &self.registry) {
            return Err(StateError::new_err(
                "the specification was prepared for another registry",
            ));
        }
        let inner = spec.resolved()?;
        let registry = &self.registry;
        let seed = seed.unwrap_or_else(|| registry.next_seed());
        let mut team = Team::default();
        let reuses = off_gil(py, || {
            with_scratch(|scratch| {
                let mut viewer = self.lock();
                viewer.assemble(registry, &inner.prepared, seed, scratch, &mut team);
                Ok::<_, RegistryError>(viewer.reuses())
            })
        })?;
        Ok(PyTeam {
            inner,
            team,
            reuses,
            members: PyOnceLock::new(),
        })
    }
}

/// A registry read from a snapshot, on its way into the Python object.
#[pyclass(frozen, name = "RestoredRegistry", module = "pandacore._core")]
pub(crate) struct PyRestored(Mutex<Option<Registry>>);

/// A request as the caller gave it, names unresolved.
#[derive(Clone)]
struct Template {
    required: Vec<(Vec<String>, u32)>,
    mode: Mode,
    quality: Quality,
    probes: u32,
    domain_cap: Option<u32>,
    cost_cap: Option<u64>,
    tags: Vec<String>,
    exclude: Vec<[u8; 32]>,
    must_include: Vec<[u8; 32]>,
}

/// A request resolved against one registry.
struct Inner {
    registry: Arc<Registry>,
    template: Template,
    prepared: Prepared,
    /// Some name is unknown so far; the registry knew this many then.
    unresolved: Option<u32>,
}

impl Template {
    fn resolve(self, registry: &Arc<Registry>) -> PyResult<Inner> {
        let known = registry.known_capabilities();
        let mut missing = false;
        let mut required = Vec::with_capacity(self.required.len());
        for (names, count) in &self.required {
            let mut any: Vec<u32> = names.iter().filter_map(|name| registry.find(name)).collect();
            missing |= any.len() < names.len();
            any.sort_unstable();
            any.dedup();
            required.push(Requirement { any, count: *count });
        }
        let mut tags = Vec::with_capacity(self.tags.len());
        for tag in &self.tags {
            let handle = registry.find(&format!("#{tag}"));
            missing |= handle.is_none();
            tags.push(handle.unwrap_or(NOBODY));
        }
        tags.sort_unstable();
        tags.dedup();
        let mut exclude: Vec<u32> = self
            .exclude
            .iter()
            .filter_map(|id| registry.slot_of(id))
            .collect();
        exclude.sort_unstable();
        let mut must_include = Vec::with_capacity(self.must_include.len());
        for id in &self.must_include {
            match registry.slot_of(id) {
                Some(slot) => must_include.push(slot),
                None => return Err(PyErr::from(BindingError::from(RegistryError::UnknownAgent(*id)))),
            }
        }
        must_include.sort_unstable();
        must_include.dedup();
        let spec = TeamSpec {
            required,
            mode: self.mode,
            quality: self.quality,
            probes: self.probes,
            domain_cap: self.domain_cap,
            cost_cap: self.cost_cap,
            tags,
            exclude,
            must_include,
        };
        Ok(Inner {
            registry: Arc::clone(registry),
            template: self,
            prepared: spec.into(),
            unresolved: missing.then_some(known),
        })
    }
}

/// A request resolved against one registry, to be assembled many times.
#[pyclass(frozen, name = "PreparedSpec", module = "pandacore._core")]
pub(crate) struct PyPreparedSpec {
    inner: Arc<Inner>,
    /// The last resolution, for specifications that name ids or unknown capabilities.
    current: Mutex<Arc<Inner>>,
}

impl PyPreparedSpec {
    fn resolved(&self) -> PyResult<Arc<Inner>> {
        let template = &self.inner.template;
        if self.inner.unresolved.is_none() && template.exclude.is_empty() && template.must_include.is_empty()
        {
            return Ok(Arc::clone(&self.inner));
        }
        let registry = &self.inner.registry;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = !template.exclude.is_empty() || !template.must_include.is_empty();
        if ids
            || current
                .unresolved
                .is_some_and(|known| known != registry.known_capabilities())
        {
            *current = Arc::new(template.clone().resolve(registry)?);
        }
        Ok(Arc::clone(&current))
    }

    fn run(&self, py: Python<'_>, seed: Option<u64>, trusted: Option<&[u64]>) -> PyResult<PyTeam> {
        let inner = self.resolved()?;
        let registry = &inner.registry;
        let seed = seed.unwrap_or_else(|| registry.next_seed());
        let reuses = registry.reuses();
        let mut team = Team::default();
        let quick = inner.prepared.spec().quality == Quality::Fast && trusted.is_none();
        if quick {
            // About half a microsecond: leaving the interpreter would cost as much.
            with_scratch(|scratch| {
                registry.assemble_prepared(&inner.prepared, None, seed, scratch, &mut team)
            });
        } else {
            let team = &mut team;
            off_gil(py, || {
                with_scratch(|scratch| {
                    registry.assemble_prepared(&inner.prepared, trusted, seed, scratch, team)
                });
                Ok::<_, RegistryError>(())
            })?;
        }
        Ok(PyTeam {
            inner,
            team,
            reuses,
            members: PyOnceLock::new(),
        })
    }
}

#[pymethods]
impl PyPreparedSpec {
    #[pyo3(signature = (seed = None))]
    fn assemble(&self, py: Python<'_>, seed: Option<u64>) -> PyResult<PyTeam> {
        self.run(py, seed, None)
    }

    #[getter]
    fn wanted(&self) -> u32 {
        self.inner.prepared.spec().total()
    }

    fn __repr__(&self) -> String {
        let lines: Vec<String> = self
            .inner
            .template
            .required
            .iter()
            .map(|(names, n)| format!("{}: {n}", names.join("|")))
            .collect();
        format!("PreparedSpec({{{}}})", lines.join(", "))
    }
}

/// What the registry knows of one agent.
#[pyclass(frozen, name = "AgentRecord", module = "pandacore._core", get_all)]
pub(crate) struct PyAgentRecord {
    agent_id: Py<PyBytes>,
    slot: u32,
    version: u64,
    capabilities: Py<PyTuple>,
    tags: Py<PyTuple>,
    load: u16,
    domain: u16,
    cost: u16,
    service_s: f64,
    rtt_s: f64,
    concurrency: u8,
    score: u16,
    alive: bool,
    trusted: bool,
    draining: bool,
}

#[pymethods]
impl PyAgentRecord {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let id: String = self
            .agent_id
            .as_bytes(py)
            .iter()
            .take(4)
            .map(|b| format!("{b:02x}"))
            .collect();
        let capabilities = self.capabilities.bind(py).repr()?;
        Ok(format!(
            "AgentRecord({id}…, slot={}, capabilities={capabilities}, load={})",
            self.slot, self.load
        ))
    }
}

/// One agent of a team, with the capability it serves.
#[pyclass(frozen, name = "Member", module = "pandacore._core", get_all)]
pub(crate) struct PyMember {
    agent_id: Py<PyBytes>,
    slot: u32,
    capabilities: Py<PyTuple>,
    load: u16,
    score: u16,
}

#[pymethods]
impl PyMember {
    /// The first of its capabilities; in a dedicated team the only one.
    #[getter]
    fn capability<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.capabilities.bind(py).get_item(0)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let id: String = self
            .agent_id
            .as_bytes(py)
            .iter()
            .take(4)
            .map(|b| format!("{b:02x}"))
            .collect();
        let capabilities = self.capabilities.bind(py).repr()?;
        Ok(format!(
            "Member({id}…, slot={}, capabilities={capabilities}, load={})",
            self.slot, self.load
        ))
    }
}

/// Why no valid team exists: capabilities that too few agents hold together (Hall).
#[pyclass(frozen, name = "Certificate", module = "pandacore._core", get_all)]
pub(crate) struct PyCertificate {
    capabilities: Py<PyTuple>,
    wanted: u32,
    available: u32,
}

#[pymethods]
impl PyCertificate {
    /// How many more agents with any of the capabilities would be needed.
    #[getter]
    fn short(&self) -> u32 {
        self.wanted - self.available
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let capabilities = self.capabilities.bind(py).repr()?;
        Ok(format!(
            "Certificate({capabilities}, wanted={}, available={})",
            self.wanted, self.available
        ))
    }
}

/// The agents chosen for a request, and what is missing if no valid team exists.
#[pyclass(frozen, name = "Team", module = "pandacore._core")]
pub(crate) struct PyTeam {
    inner: Arc<Inner>,
    team: Team,
    reuses: u32,
    members: PyOnceLock<Py<PyTuple>>,
}

impl PyTeam {
    fn label(&self, requirement: usize) -> String {
        self.inner.template.required[requirement].0.join("|")
    }

    fn build<'py>(&self, py: Python<'py>) -> PyResult<Py<PyTuple>> {
        let labels: Vec<Bound<'py, PyString>> = (0..self.inner.prepared.spec().required.len())
            .map(|i| PyString::intern(py, &self.label(i)))
            .collect();
        let mut members = Vec::with_capacity(self.team.picks.len());
        for pick in &self.team.picks {
            let Some(id) = self.inner.registry.id_at(pick.slot, self.reuses) else {
                return Err(StateError::new_err(format!(
                    "slot {} went to another agent since this team was assembled; read `members` sooner",
                    pick.slot
                )));
            };
            let serves = labels
                .iter()
                .enumerate()
                .filter(|(i, _)| pick.serves >> i & 1 == 1)
                .map(|(_, l)| l);
            members.push(PyMember {
                agent_id: PyBytes::new(py, &id).unbind(),
                slot: pick.slot,
                capabilities: PyTuple::new(py, serves.collect::<Vec<_>>())?.unbind(),
                load: self.inner.registry.attributes(pick.slot).map_or(0, |a| a.load),
                score: pick.score,
            });
        }
        let members = members
            .into_iter()
            .map(|m| Py::new(py, m))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(PyTuple::new(py, members)?.unbind())
    }
}

#[pymethods]
impl PyTeam {
    #[getter]
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        Ok(self
            .members
            .get_or_try_init(py, || self.build(py))?
            .bind(py)
            .clone())
    }

    #[getter]
    fn slots<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.team
            .picks
            .iter()
            .map(|p| p.slot)
            .collect::<Vec<_>>()
            .into_pyarray(py)
    }

    #[getter]
    fn scores<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u16>> {
        self.team
            .picks
            .iter()
            .map(|p| p.score)
            .collect::<Vec<_>>()
            .into_pyarray(py)
    }

    #[getter]
    fn complete(&self) -> bool {
        self.team.complete()
    }

    #[getter]
    fn missing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let missing = PyDict::new(py);
        for &(i, short) in &self.team.missing {
            missing.set_item(self.label(i as usize), short)?;
        }
        Ok(missing)
    }

    /// Why it is incomplete: "agents", "cost" or "must_include"; None for a complete team.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        Some(match self.team.shortage? {
            Shortage::Agents => "agents",
            Shortage::Cost => "cost",
            Shortage::MustInclude => "must_include",
        })
    }

    #[getter]
    fn certificate(&self, py: Python<'_>) -> PyResult<Option<PyCertificate>> {
        let Some(hall) = self.team.hall else {
            return Ok(None);
        };
        let names: Vec<String> = (0..self.inner.prepared.spec().required.len())
            .filter(|&i| hall.requirements >> i & 1 == 1)
            .map(|i| self.label(i))
            .collect();
        Ok(Some(PyCertificate {
            capabilities: PyTuple::new(py, names)?.unbind(),
            wanted: hall.wanted,
            available: hall.available,
        }))
    }

    #[getter]
    fn lower_bound(&self) -> u32 {
        self.team.lower_bound
    }

    #[getter]
    fn optimal(&self) -> bool {
        self.team.optimal
    }

    #[getter]
    fn mode(&self) -> &'static str {
        match self.inner.prepared.spec().mode {
            Mode::Dedicated => "dedicated",
            Mode::Consolidated => "consolidated",
        }
    }

    fn __len__(&self) -> usize {
        self.team.picks.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.members(py)?.try_iter()?.into_any())
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err(
            "a Team is neither true nor false; use team.complete or len(team)",
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = if self.complete() {
            String::from("complete")
        } else {
            format!("missing={}", self.missing(py)?.repr()?)
        };
        Ok(format!(
            "Team({} members, {}, {state})",
            self.team.picks.len(),
            self.mode()
        ))
    }
}

/// (load, concurrency, service_s, rtt_s, age_s) of a candidate.
#[derive(FromPyObject)]
struct Known(u32, u32, f64, f64, f64);

fn candidates(known: &[Known]) -> Vec<Candidate> {
    let convert = |(agent, k): (usize, &Known)| Candidate {
        agent: agent as u32,
        load: k.0,
        concurrency: k.1,
        service_s: k.2,
        rtt_s: k.3,
        age_s: k.4,
    };
    known.iter().enumerate().map(convert).collect()
}

fn policy(name: &str, d: u32) -> PyResult<Policy> {
    match name {
        "idle_first_two_stage" => Ok(Policy::IdleFirstTwoStage),
        "random" => Ok(Policy::Random),
        "power_of_d" => Ok(Policy::PowerOfD(d)),
        "least_loaded" => Ok(Policy::LeastLoaded),
        _ => Err(ConfigError::new_err(format!(
            "policy is {name:?}; it can be 'idle_first_two_stage', 'random', 'power_of_d' or 'least_loaded'"
        ))),
    }
}

#[pyclass(frozen, name = "ProbingCore", module = "pandacore._core")]
pub(crate) struct PyProbing(Probing);

#[pymethods]
impl PyProbing {
    #[new]
    #[pyo3(signature = (policy, *, d, sample, shortlist, extra, fresh, local_below, ignore_from, tries, timeout_s))]
    #[expect(clippy::too_many_arguments, reason = "fields of one policy")]
    fn new(
        policy: &str,
        d: u32,
        sample: usize,
        shortlist: usize,
        extra: usize,
        fresh: usize,
        local_below: f64,
        ignore_from: f64,
        tries: usize,
        timeout_s: (f64, f64),
    ) -> PyResult<Self> {
        let policy = self::policy(policy, d)?;
        Ok(Self(Probing {
            policy,
            sample,
            shortlist,
            extra,
            fresh,
            local_below,
            ignore_from,
            tries,
            timeout_s,
        }))
    }

    /// Whether to probe, whom (or the order in which to reserve), and how long to wait.
    fn advise(&self, known: Vec<Known>, service_s: f64, seed: u64) -> (bool, Vec<usize>, f64) {
        match self.0.advise(&candidates(&known), service_s, &mut Rng::new(seed)) {
            Advice::Reserve(order) => (false, order, 0.0),
            Advice::Probe { which, timeout_s } => (true, which, timeout_s),
        }
    }

    fn choose(&self, known: Vec<Known>, seed: u64) -> Vec<usize> {
        self.0.choose(&candidates(&known), &mut Rng::new(seed))
    }

    #[staticmethod]
    fn queue_limit(concurrency: u32) -> u32 {
        queue_limit(concurrency)
    }
}

/// Runs one load-balancing simulation; times are in mean service times.
#[pyfunction]
#[pyo3(signature = (balancer, *, d = 2, blocks = 2, agents = 1000, entries = 16, load = 0.9, spread = 4.0, sigma = 1.0, refresh = 0.0, jobs = 200_000, seed = 1))]
#[expect(clippy::too_many_arguments, reason = "conditions of one simulation")]
pub(crate) fn simulate_balance<'py>(
    py: Python<'py>,
    balancer: &str,
    d: u32,
    blocks: usize,
    agents: u32,
    entries: u32,
    load: f64,
    spread: f64,
    sigma: f64,
    refresh: f64,
    jobs: u32,
    seed: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let sound =
        load > 0.0 && load < 1.0 && (1..=1_000_000).contains(&agents) && (1..=4096).contains(&entries);
    if !sound {
        let text = "load must be between 0 and 1, agents from 1 to 10^6, entries from 1 to 4096";
        return Err(ConfigError::new_err(text));
    }
    let balancer = match balancer {
        "choices" => Balancer::Choices(d.max(1)),
        "shortest" => Balancer::Shortest,
        "idle_queue" => Balancer::IdleQueue,
        "prequal" => Balancer::Prequal,
        _ => Balancer::Probing(Probing {
            policy: policy(balancer, d)?,
            sample: 8 * blocks.clamp(1, 16),
            ..Probing::default()
        }),
    };
    let setting = Setting {
        balancer,
        agents,
        entries,
        load,
        spread,
        sigma,
        refresh,
        jobs,
        seed,
    };
    let outcome = off_gil(py, || Ok::<_, RegistryError>(simulate(&setting)))?;
    let dict = PyDict::new(py);
    dict.set_item("mean_wait", outcome.mean_wait)?;
    dict.set_item("p99_wait", outcome.p99_wait)?;
    dict.set_item("p999_wait", outcome.p999_wait)?;
    dict.set_item("mean_response", outcome.mean_response)?;
    dict.set_item("longest_queue", outcome.longest_queue)?;
    dict.set_item("fairness", outcome.fairness)?;
    dict.set_item("messages", outcome.messages)?;
    dict.set_item("resampled", outcome.resampled)?;
    Ok(dict)
}
