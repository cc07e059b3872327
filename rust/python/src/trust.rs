//! Binding of `pandacore_trust`: keys, signed statements, the web of trust.
use std::cell::RefCell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pandacore_trust::{
    AgentId, Certificate, Genesis, Graph, KeyError, KeyPair, Ledger, Limits, Quota, Rating, Record, Refusal,
    Report, Revocation, SIGNATURE_LEN, Scratch, SetSpec, Threshold, Walk, Web, advogato, distance, flow,
    reach, reach_count, reach_sizes, reach_threshold, reach_threshold_sizes, witness,
};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::detach::off_gil;
use crate::error::BindingError;

import_exception!(pandacore.errors, BadConsent);
import_exception!(pandacore.errors, BadInterval);
import_exception!(pandacore.errors, BadSignature);
import_exception!(pandacore.errors, DuplicateStatement);
import_exception!(pandacore.errors, Expired);
import_exception!(pandacore.errors, ForeignCollective);
import_exception!(pandacore.errors, InvalidKey);
import_exception!(pandacore.errors, MalformedRecord);
import_exception!(pandacore.errors, NotAuthorised);
import_exception!(pandacore.errors, NotYetValid);
import_exception!(pandacore.errors, QuotaExceeded);
import_exception!(pandacore.errors, SelfStatement);
import_exception!(pandacore.errors, ShapeError);
import_exception!(pandacore.errors, StateError);
import_exception!(pandacore.errors, UnknownAgent);

impl From<KeyError> for BindingError {
    fn from(error: KeyError) -> Self {
        InvalidKey::new_err(error.to_string()).into()
    }
}

impl From<Refusal> for BindingError {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::Malformed { .. } | Refusal::UnknownKind(_) => MalformedRecord::new_err(text),
            Refusal::NotAKey => InvalidKey::new_err(text),
            Refusal::ForeignCollective => ForeignCollective::new_err(text),
            Refusal::SelfStatement => SelfStatement::new_err(text),
            Refusal::BadInterval | Refusal::LifetimeTooLong { .. } => BadInterval::new_err(text),
            Refusal::Expired => Expired::new_err(text),
            Refusal::NotYetValid => NotYetValid::new_err(text),
            Refusal::BadSignature => BadSignature::new_err(text),
            Refusal::BadConsent => BadConsent::new_err(text),
            Refusal::NotAuthorised => NotAuthorised::new_err(text),
            Refusal::Duplicate => DuplicateStatement::new_err(text),
            Refusal::QuotaExceeded { .. } => QuotaExceeded::new_err(text),
        }
        .into()
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs `work` with this thread's search memory.
fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        Err(_) => work(&mut Scratch::default()),
    })
}

#[pyclass(frozen, name = "KeyPair", module = "pandacore._core")]
pub(crate) struct PyKeyPair(pub(crate) KeyPair);

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

    /// A certificate that still lacks the subject's consent, encoded.
    #[expect(clippy::too_many_arguments, reason = "the fields of a certificate")]
    fn certify<'py>(
        &self,
        py: Python<'py>,
        collective: [u8; 32],
        subject: [u8; 32],
        serial: u64,
        not_before: u64,
        not_after: u64,
        max_depth: u8,
        amount: u8,
    ) -> Bound<'py, PyBytes> {
        let subject = AgentId(subject);
        let cert = Certificate::issue(
            collective, &self.0, subject, serial, not_before, not_after, max_depth, amount,
        );
        PyBytes::new(py, &cert.encode())
    }

    /// The same certificate with this key's consent.
    fn consent<'py>(&self, py: Python<'py>, record: &[u8]) -> Result<Bound<'py, PyBytes>, BindingError> {
        match Record::decode(record)? {
            Record::Certificate(cert) => Ok(PyBytes::new(py, &cert.consented(&self.0).encode())),
            Record::Revocation(_) => Err(MalformedRecord::new_err("not a certificate").into()),
        }
    }

    fn revoke<'py>(
        &self,
        py: Python<'py>,
        collective: [u8; 32],
        issuer: [u8; 32],
        subject: [u8; 32],
        serial: u64,
        at: u64,
    ) -> Bound<'py, PyBytes> {
        let (issuer, subject) = (AgentId(issuer), AgentId(subject));
        PyBytes::new(
            py,
            &Revocation::certificate(collective, &self.0, issuer, subject, serial, at).encode(),
        )
    }

    fn retire<'py>(&self, py: Python<'py>, collective: [u8; 32], at: u64) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &Revocation::retire(collective, &self.0, at).encode())
    }

    fn compromised<'py>(&self, py: Python<'py>, collective: [u8; 32], at: u64) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &Revocation::compromised(collective, &self.0, at).encode())
    }

    fn expel<'py>(
        &self,
        py: Python<'py>,
        collective: [u8; 32],
        subject: [u8; 32],
        at: u64,
    ) -> Bound<'py, PyBytes> {
        PyBytes::new(
            py,
            &Revocation::expel(collective, &self.0, AgentId(subject), at).encode(),
        )
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a report")]
    fn report<'py>(
        &self,
        py: Python<'py>,
        collective: [u8; 32],
        subject: [u8; 32],
        epoch: u64,
        counter: u64,
        x: f64,
        y: f64,
    ) -> Bound<'py, PyBytes> {
        let rating = Rating { x, y };
        let report = Report::sign(collective, &self.0, AgentId(subject), epoch, counter, rating);
        PyBytes::new(py, &report.encode())
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

#[pyfunction]
pub(crate) fn collective_id(members: Vec<[u8; 32]>, threshold: u8, label: String) -> [u8; 32] {
    Genesis::new(members.into_iter().map(AgentId).collect(), threshold, label).collective()
}

/// The fields of a record: ("certificate", id, collective, issuer, subject, serial, not_before, not_after,
/// max_depth, amount) or (kind, id, collective, signer, issuer, subject, serial, at, 0, 0).
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a flat tuple, named in Python")]
pub(crate) fn decode_record(
    record: &[u8],
) -> Result<
    (
        &'static str,
        [u8; 32],
        [u8; 32],
        [u8; 32],
        [u8; 32],
        [u8; 32],
        u64,
        u64,
        u64,
        u8,
        u8,
    ),
    BindingError,
> {
    use pandacore_trust::RevocationKind as Kind;
    let decoded = Record::decode(record)?;
    let id = decoded.id();
    Ok(match decoded {
        Record::Certificate(c) => (
            "certificate",
            id,
            c.collective,
            c.issuer.0,
            c.issuer.0,
            c.subject.0,
            c.serial,
            c.not_before,
            c.not_after,
            c.max_depth,
            c.amount,
        ),
        Record::Revocation(r) => {
            let kind = match r.kind {
                Kind::Certificate => "revoked",
                Kind::Retired => "retired",
                Kind::Compromised => "compromised",
                Kind::Expel => "expel",
            };
            (
                kind,
                id,
                r.collective,
                r.signer.0,
                r.issuer.0,
                r.subject.0,
                r.serial,
                r.at,
                r.at,
                0,
                0,
            )
        }
    })
}

/// Checks a record's signatures without taking it in.
#[pyfunction]
pub(crate) fn verify_record(record: &[u8]) -> Result<(), BindingError> {
    Ok(Record::decode(record)?.verify()?)
}

fn same_length(lengths: &[usize]) -> PyResult<()> {
    if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(ShapeError::new_err(format!(
            "the arrays have different lengths: {lengths:?}"
        )));
    }
    Ok(())
}

fn contiguous<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array
        .as_slice()
        .map_err(|_| ShapeError::new_err("the array is not contiguous"))
}

/// A refusal as a small number for arrays; 0 is success. `pandacore.trust` names them.
fn code(answer: Result<(), Refusal>) -> u8 {
    match answer {
        Ok(()) => 0,
        Err(Refusal::Malformed { .. } | Refusal::UnknownKind(_)) => 1,
        Err(Refusal::NotAKey) => 2,
        Err(Refusal::ForeignCollective) => 3,
        Err(Refusal::SelfStatement) => 4,
        Err(Refusal::BadInterval | Refusal::LifetimeTooLong { .. }) => 5,
        Err(Refusal::Expired) => 6,
        Err(Refusal::NotYetValid) => 7,
        Err(Refusal::BadSignature) => 8,
        Err(Refusal::BadConsent) => 9,
        Err(Refusal::NotAuthorised) => 10,
        Err(Refusal::Duplicate) => 11,
        Err(Refusal::QuotaExceeded { .. }) => 12,
    }
}

fn walk(max_depth: i64, mutual: bool, members_only: bool) -> Walk {
    Walk {
        max_depth: u32::try_from(max_depth).ok(),
        mutual,
        members_only,
    }
}

/// Which walk a call wants, packed: bit 0 mutual, bit 1 members only.
fn packed(max_depth: i64, flags: u8) -> Walk {
    walk(max_depth, flags & 1 != 0, flags & 2 != 0)
}

/// Depth up to which one distance is searched without leaving the interpreter.
const STAYS: u32 = 3;

/// The path rule of one policy on one graph, resolved once: for questions that take about a microsecond.
#[pyclass(frozen, name = "TrustSearch", module = "pandacore._core")]
pub(crate) struct PySearch {
    trust: Py<PyTrust>,
    walk: Walk,
}

#[pymethods]
impl PySearch {
    fn distance(&self, py: Python<'_>, anchor: u32, target: u32) -> Result<Option<u32>, BindingError> {
        let find = |ledger: &Ledger, scratch: &mut Scratch| {
            distance(ledger.web().graph(), scratch, anchor, target, self.walk)
        };
        // A shallow search from both ends takes about as long as leaving the interpreter would: it stays,
        // unless it would have to wait for a writer.
        if self.walk.max_depth.is_some_and(|depth| depth <= STAYS)
            && let Ok(ledger) = self.trust.get().0.try_read()
        {
            PyTrust::known(ledger.web().graph(), &[anchor, target])?;
            return Ok(with_scratch(|scratch| find(&ledger, scratch)));
        }
        self.trust.get().search(py, &[anchor, target], find)
    }

    fn distances<'py>(
        &self,
        py: Python<'py>,
        anchors: PyReadonlyArray1<'py, u32>,
        targets: PyReadonlyArray1<'py, u32>,
    ) -> Result<Bound<'py, PyArray1<i32>>, BindingError> {
        let (anchors, targets) = (contiguous(&anchors)?, contiguous(&targets)?);
        same_length(&[anchors.len(), targets.len()])?;
        let found = off_gil(py, || {
            let ledger = self.trust.get().read();
            let graph = ledger.web().graph();
            PyTrust::known(graph, anchors)?;
            PyTrust::known(graph, targets)?;
            Ok::<_, BindingError>(with_scratch(|scratch| {
                let one = |(&anchor, &target): (&u32, &u32)| {
                    distance(graph, scratch, anchor, target, self.walk).map_or(-1, |d| d as i32)
                };
                anchors.iter().zip(targets).map(one).collect::<Vec<i32>>()
            }))
        })?;
        Ok(found.into_pyarray(py))
    }

    fn reach_count(&self, py: Python<'_>, anchor: u32) -> Result<usize, BindingError> {
        self.trust.get().search(py, &[anchor], |ledger, scratch| {
            reach_count(ledger.web().graph(), scratch, &[anchor], self.walk)
        })
    }

    fn reach<'py>(&self, py: Python<'py>, anchor: u32) -> Result<Bound<'py, PyArray1<u32>>, BindingError> {
        let nodes = self.trust.get().search(py, &[anchor], |ledger, scratch| {
            reach(ledger.web().graph(), scratch, &[anchor], self.walk, None).to_vec()
        })?;
        Ok(nodes.into_pyarray(py))
    }
}

/// A ledger with its web; nodes are numbers.
#[pyclass(frozen, name = "TrustCore", module = "pandacore._core")]
pub(crate) struct PyTrust(RwLock<Ledger>);

impl PyTrust {
    fn read(&self) -> RwLockReadGuard<'_, Ledger> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ledger> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(graph: &Graph, nodes: &[u32]) -> Result<(), BindingError> {
        match nodes.iter().find(|&&node| node as usize >= graph.nodes()) {
            Some(node) => Err(UnknownAgent::new_err(format!("there is no node {node}")).into()),
            None => Ok(()),
        }
    }

    /// Runs a search on the graph, outside the interpreter.
    fn search<T: Send>(
        &self,
        py: Python<'_>,
        nodes: &[u32],
        find: impl FnOnce(&Ledger, &mut Scratch) -> T + Send,
    ) -> Result<T, BindingError> {
        off_gil(py, || {
            let ledger = self.read();
            Self::known(ledger.web().graph(), nodes)?;
            Ok::<_, BindingError>(with_scratch(|scratch| find(&ledger, scratch)))
        })
    }

    fn change<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Ledger) -> Result<T, BindingError> + Send,
    ) -> Result<T, BindingError> {
        off_gil(py, || work(&mut self.write()))
    }

    fn with_set<T>(&self, id: usize, view: impl FnOnce(&Web) -> T) -> PyResult<T> {
        let ledger = self.read();
        match ledger.web().set(id) {
            Some(_) => Ok(view(ledger.web())),
            None => Err(StateError::new_err("the trusted set was dropped")),
        }
    }
}

#[pymethods]
impl PyTrust {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the settings, named in Python")]
    fn new(
        members: Vec<[u8; 32]>,
        threshold: u8,
        label: String,
        latched: bool,
        grace: u32,
        quota: Option<(usize, u32)>,
        max_lifetime: u64,
        clock_skew: u64,
        per_signer: usize,
        total: usize,
        now: u32,
    ) -> Self {
        let genesis = Genesis::new(members.into_iter().map(AgentId).collect(), threshold, label);
        let quota = quota.map(|(subjects, window)| Quota { subjects, window });
        let limits = Limits {
            max_lifetime,
            clock_skew,
            per_signer,
            total,
        };
        Self(RwLock::new(Ledger::new(
            genesis, latched, grace, quota, limits, now,
        )))
    }

    #[getter]
    fn collective(&self) -> [u8; 32] {
        self.read().collective()
    }

    #[getter]
    fn now(&self) -> u32 {
        self.read().web().graph().now()
    }

    #[getter]
    fn nodes(&self) -> usize {
        self.read().web().graph().nodes()
    }

    #[getter]
    fn arcs(&self) -> usize {
        self.read().web().graph().arcs()
    }

    #[getter]
    fn statements(&self) -> usize {
        self.read().len()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.read().web().graph().memory_bytes()
    }

    fn digest(&self, py: Python<'_>) -> Result<[u8; 32], BindingError> {
        off_gil(py, || Ok::<_, BindingError>(self.read().digest()))
    }

    fn node(&self, agent: [u8; 32]) -> Option<u32> {
        self.read().node(&AgentId(agent))
    }

    fn agent(&self, node: u32) -> PyResult<[u8; 32]> {
        let agent = self.read().agent(node);
        agent
            .map(|agent| agent.0)
            .ok_or_else(|| UnknownAgent::new_err(format!("there is no node {node}")))
    }

    fn intern(&self, agent: &[u8]) -> Result<u32, BindingError> {
        let agent = AgentId::from_public(agent)?;
        Ok(self.write().intern(agent)?)
    }

    /// Nodes of agents given as rows of 32 bytes; new ones are added in order. Keys are not checked.
    fn intern_many<'py>(
        &self,
        py: Python<'py>,
        agents: PyReadonlyArray2<'py, u8>,
    ) -> Result<Bound<'py, PyArray1<u32>>, BindingError> {
        let bytes = agents
            .as_slice()
            .map_err(|_| ShapeError::new_err("the array is not contiguous"))?;
        let nodes = self.change(py, |ledger| {
            let (rows, _) = bytes.as_chunks::<32>();
            rows.iter()
                .map(|row| Ok(ledger.intern(AgentId(*row))?))
                .collect::<Result<Vec<u32>, BindingError>>()
        })?;
        Ok(nodes.into_pyarray(py))
    }

    fn ingest(&self, py: Python<'_>, record: &[u8]) -> Result<(), BindingError> {
        self.change(py, |ledger| Ok(ledger.ingest(record)?))
    }

    fn ingest_many<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyList>,
        threads: usize,
    ) -> Result<Bound<'py, PyArray1<u8>>, BindingError> {
        let records: Vec<Vec<u8>> = records.extract()?;
        let codes = self.change(py, |ledger| {
            let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            Ok(ledger
                .ingest_all(&records, threads)
                .into_iter()
                .map(code)
                .collect::<Vec<u8>>())
        })?;
        Ok(codes.into_pyarray(py))
    }

    fn export<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyList>, BindingError> {
        let records = off_gil(py, || Ok::<_, BindingError>(self.read().export()))?;
        Ok(PyList::new(
            py,
            records.iter().map(|record| PyBytes::new(py, record)),
        )?)
    }

    /// Certificates between nodes whose signatures were checked elsewhere.
    #[expect(clippy::too_many_arguments, reason = "the fields of a certificate")]
    fn admit<'py>(
        &self,
        py: Python<'py>,
        issuers: PyReadonlyArray1<'py, u32>,
        subjects: PyReadonlyArray1<'py, u32>,
        serials: PyReadonlyArray1<'py, u64>,
        begins: PyReadonlyArray1<'py, u32>,
        ends: PyReadonlyArray1<'py, u32>,
        max_depth: u8,
        amount: u8,
    ) -> Result<Bound<'py, PyArray1<u8>>, BindingError> {
        let (issuers, subjects) = (contiguous(&issuers)?, contiguous(&subjects)?);
        let (serials, begins, ends) = (contiguous(&serials)?, contiguous(&begins)?, contiguous(&ends)?);
        same_length(&[
            issuers.len(),
            subjects.len(),
            serials.len(),
            begins.len(),
            ends.len(),
        ])?;
        let codes = self.change(py, |ledger| {
            let one = |i: usize| {
                ledger.admit(
                    issuers[i],
                    subjects[i],
                    serials[i],
                    begins[i],
                    ends[i],
                    max_depth,
                    amount,
                )
            };
            let codes: Vec<u8> = (0..issuers.len()).map(one).map(code).collect();
            ledger.web_mut().settle();
            Ok(codes)
        })?;
        Ok(codes.into_pyarray(py))
    }

    fn end_many<'py>(
        &self,
        py: Python<'py>,
        issuers: PyReadonlyArray1<'py, u32>,
        subjects: PyReadonlyArray1<'py, u32>,
        serials: PyReadonlyArray1<'py, u64>,
        at: u32,
    ) -> Result<Bound<'py, PyArray1<u8>>, BindingError> {
        let (issuers, subjects, serials) = (
            contiguous(&issuers)?,
            contiguous(&subjects)?,
            contiguous(&serials)?,
        );
        same_length(&[issuers.len(), subjects.len(), serials.len()])?;
        let codes = self.change(py, |ledger| {
            let one = |i: usize| ledger.end(issuers[i], subjects[i], serials[i], at);
            let codes: Vec<u8> = (0..issuers.len()).map(one).map(code).collect();
            ledger.web_mut().settle();
            Ok(codes)
        })?;
        Ok(codes.into_pyarray(py))
    }

    fn compromise_many(&self, py: Python<'_>, nodes: PyReadonlyArray1<'_, u32>) -> Result<(), BindingError> {
        let nodes = contiguous(&nodes)?;
        self.change(py, |ledger| {
            Self::known(ledger.web().graph(), nodes)?;
            for &node in nodes {
                ledger.web_mut().compromise(node);
            }
            ledger.web_mut().settle();
            Ok(())
        })
    }

    /// Grows the graph to `nodes` nodes that belong to no key, and loads a whole topology.
    fn load(
        &self,
        py: Python<'_>,
        nodes: usize,
        issuers: PyReadonlyArray1<'_, u32>,
        subjects: PyReadonlyArray1<'_, u32>,
        begins: PyReadonlyArray1<'_, u32>,
        ends: PyReadonlyArray1<'_, u32>,
    ) -> Result<(), BindingError> {
        let (issuers, subjects) = (contiguous(&issuers)?, contiguous(&subjects)?);
        let (begins, ends) = (contiguous(&begins)?, contiguous(&ends)?);
        same_length(&[issuers.len(), subjects.len(), begins.len(), ends.len()])?;
        self.change(py, |ledger| {
            if !ledger.is_empty() {
                return Err(StateError::new_err("the ledger holds statements; load into a new one").into());
            }
            ledger.web_mut().grow(nodes);
            if !ledger.web_mut().load(issuers, subjects, begins, ends) {
                return Err(
                    UnknownAgent::new_err("an issuer or subject is not below the number of nodes").into(),
                );
            }
            Ok(())
        })
    }

    /// Certificate events on a loaded topology, the sets being right after each: kind 0 adds issuer → subject
    /// with [begin, end), 1 ends it at `begin`, 2 advances the time to `begin`.
    fn apply(
        &self,
        py: Python<'_>,
        kinds: PyReadonlyArray1<'_, u8>,
        issuers: PyReadonlyArray1<'_, u32>,
        subjects: PyReadonlyArray1<'_, u32>,
        begins: PyReadonlyArray1<'_, u32>,
        ends: PyReadonlyArray1<'_, u32>,
    ) -> Result<(), BindingError> {
        let (kinds, issuers, subjects) = (contiguous(&kinds)?, contiguous(&issuers)?, contiguous(&subjects)?);
        let (begins, ends) = (contiguous(&begins)?, contiguous(&ends)?);
        same_length(&[
            kinds.len(),
            issuers.len(),
            subjects.len(),
            begins.len(),
            ends.len(),
        ])?;
        self.change(py, |ledger| {
            if !ledger.is_empty() {
                return Err(
                    StateError::new_err("the web belongs to the ledger's statements; use admit").into(),
                );
            }
            Self::known(ledger.web().graph(), issuers)?;
            Self::known(ledger.web().graph(), subjects)?;
            let web = ledger.web_mut();
            for i in 0..kinds.len() {
                match kinds[i] {
                    0 => web.renew(issuers[i], subjects[i], begins[i], ends[i]),
                    1 => {
                        web.end(issuers[i], subjects[i], begins[i]);
                    }
                    _ => {
                        if !web.advance(begins[i]) {
                            return Err(StateError::new_err("the reference time never goes back").into());
                        }
                    }
                }
                web.settle();
            }
            Ok(())
        })
    }

    fn advance(&self, py: Python<'_>, to: u32) -> Result<(), BindingError> {
        self.change(py, |ledger| {
            if ledger.advance(to) {
                return Ok(());
            }
            let now = ledger.web().graph().now();
            Err(
                StateError::new_err(format!("the reference time is {now}; it never goes back to {to}"))
                    .into(),
            )
        })
    }

    fn path_search(slf: Bound<'_, Self>, max_depth: i64, flags: u8) -> Result<PySearch, BindingError> {
        let walk = packed(max_depth, flags);
        if walk.members_only {
            slf.get().need_members(slf.py())?;
        }
        Ok(PySearch {
            trust: slf.unbind(),
            walk,
        })
    }

    fn need_members(&self, py: Python<'_>) -> Result<(), BindingError> {
        self.change(py, |ledger| {
            ledger.web_mut().need_members();
            Ok(())
        })
    }

    fn is_member(&self, node: u32) -> bool {
        let ledger = self.read();
        ledger
            .web()
            .members()
            .is_some_and(|members| members.contains(node))
    }

    fn members<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<bool>> {
        let ledger = self.read();
        ledger
            .web()
            .members()
            .map_or(Vec::new(), |members| members.flags().collect())
            .into_pyarray(py)
    }

    /// "", "retired", "compromised" or "expelled".
    fn key_state(&self, node: u32) -> &'static str {
        let ledger = self.read();
        let web = ledger.web();
        if node as usize >= web.graph().nodes() {
            ""
        } else if web.is_compromised(node) {
            "compromised"
        } else if web.is_expelled(node) {
            "expelled"
        } else if web.graph().is_retired(node) {
            "retired"
        } else {
            ""
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the policy, named in Python")]
    fn add_set(
        &self,
        py: Python<'_>,
        anchors: Vec<u32>,
        threshold: u32,
        anchor_weight: u32,
        max_depth: Option<u32>,
        mutual: bool,
        members_only: bool,
    ) -> Result<usize, BindingError> {
        self.change(py, |ledger| {
            Self::known(ledger.web().graph(), &anchors)?;
            let spec = SetSpec {
                anchors,
                threshold,
                anchor_weight,
                max_depth,
                mutual,
                members_only,
            };
            Ok(ledger.web_mut().add_set(spec))
        })
    }

    fn drop_set(&self, id: usize) {
        self.write().web_mut().drop_set(id);
    }

    /// Layer of a node in a set, -1 if it is outside or its key is retired.
    fn layer(&self, id: usize, node: u32) -> PyResult<i64> {
        self.with_set(id, |web| match web.set(id) {
            Some(set) if web.trusts(id, node) => i64::from(set.layer(node)),
            _ => -1,
        })
    }

    fn trusts(&self, id: usize, node: u32) -> PyResult<bool> {
        self.with_set(id, |web| web.trusts(id, node))
    }

    fn trusts_many<'py>(
        &self,
        py: Python<'py>,
        id: usize,
        nodes: PyReadonlyArray1<'py, u32>,
    ) -> Result<Bound<'py, PyArray1<bool>>, BindingError> {
        let nodes = contiguous(&nodes)?;
        let inside = off_gil(py, || {
            let ask = |web: &Web| {
                nodes
                    .iter()
                    .map(|&node| web.trusts(id, node))
                    .collect::<Vec<bool>>()
            };
            self.with_set(id, ask).map_err(BindingError::from)
        })?;
        Ok(inside.into_pyarray(py))
    }

    fn set_layers<'py>(&self, py: Python<'py>, id: usize) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let layers = self.with_set(id, |web| {
            web.set(id).map_or(Vec::new(), |set| set.layers().to_vec())
        })?;
        Ok(layers.into_pyarray(py))
    }

    fn set_version(&self, id: usize) -> PyResult<(u64, u32, usize)> {
        self.with_set(id, |web| {
            let version = web.set(id).map_or(0, pandacore_trust::LayerSet::version);
            (version, web.graph().now(), web.graph().nodes())
        })
    }

    fn set_len(&self, id: usize) -> PyResult<usize> {
        self.with_set(id, |web| web.set(id).map_or(0, pandacore_trust::LayerSet::len))
    }

    fn bitmap<'py>(&self, py: Python<'py>, id: usize) -> Result<Bound<'py, PyArray1<u64>>, BindingError> {
        let words = off_gil(py, || {
            self.with_set(id, |web| web.bitmap(id))
                .map_err(BindingError::from)
        })?;
        Ok(words.into_pyarray(py))
    }

    /// Nodes within reach, in order of distance, and the end of each layer.
    fn reach<'py>(
        &self,
        py: Python<'py>,
        anchors: Vec<u32>,
        max_depth: i64,
        flags: u8,
    ) -> Result<(Bound<'py, PyArray1<u32>>, Vec<usize>), BindingError> {
        let walk = packed(max_depth, flags);
        let (nodes, ends) = self.search(py, &anchors, |ledger, scratch| {
            let mut ends = Vec::new();
            (
                reach(ledger.web().graph(), scratch, &anchors, walk, Some(&mut ends)).to_vec(),
                ends,
            )
        })?;
        Ok((nodes.into_pyarray(py), ends))
    }

    /// As `reach`, for the threshold rule.
    fn reach_threshold<'py>(
        &self,
        py: Python<'py>,
        anchors: Vec<u32>,
        threshold: u32,
        anchor_weight: u32,
        max_depth: Option<u32>,
    ) -> Result<(Bound<'py, PyArray1<u32>>, Vec<usize>), BindingError> {
        let (nodes, ends) = self.search(py, &anchors, |ledger, scratch| {
            let rule = Threshold::new(threshold, anchor_weight, max_depth);
            let mut ends = Vec::new();
            let nodes = reach_threshold(ledger.web().graph(), scratch, &anchors, rule, Some(&mut ends));
            (nodes.to_vec(), ends)
        })?;
        Ok((nodes.into_pyarray(py), ends))
    }

    #[expect(clippy::too_many_arguments, reason = "the policy, named in Python")]
    #[pyo3(signature = (anchors, threshold, anchor_weight, max_depth, flags, mask, threads))]
    fn reach_sizes<'py>(
        &self,
        py: Python<'py>,
        anchors: PyReadonlyArray1<'py, u32>,
        threshold: u32,
        anchor_weight: u32,
        max_depth: i64,
        flags: u8,
        mask: Option<PyReadonlyArray1<'py, u64>>,
        threads: usize,
    ) -> Result<Bound<'py, PyArray1<u32>>, BindingError> {
        let anchors = contiguous(&anchors)?;
        let mask = mask.as_ref().map(contiguous).transpose()?;
        let walk = packed(max_depth, flags);
        let sizes = off_gil(py, || {
            let ledger = self.read();
            let graph = ledger.web().graph();
            Self::known(graph, anchors)?;
            let rule = Threshold::new(threshold, anchor_weight, walk.max_depth);
            Ok::<_, BindingError>(if threshold > 1 {
                reach_threshold_sizes(graph, anchors, rule, mask, threads)
            } else {
                reach_sizes(graph, anchors, walk, mask, threads)
            })
        })?;
        Ok(sizes.into_pyarray(py))
    }

    /// The shortest chain from an anchor, ties by agent id, or by node for nodes without a key.
    fn witness(
        &self,
        py: Python<'_>,
        anchors: Vec<u32>,
        target: u32,
        max_depth: i64,
        flags: u8,
    ) -> Result<Option<Vec<u32>>, BindingError> {
        let walk = packed(max_depth, flags);
        let mut nodes = anchors.clone();
        nodes.push(target);
        self.search(py, &nodes, |ledger, scratch| {
            let order = |a: u32, b: u32| ledger.agent(a).cmp(&ledger.agent(b)).then(a.cmp(&b));
            witness(ledger.web().graph(), scratch, &anchors, target, walk, order)
        })
    }

    /// Certificates on a node that count now, or that would but for a budget: (issuer, id, not_before, not_after).
    #[expect(clippy::type_complexity, reason = "flat tuples, named in Python")]
    fn live_certificates(&self, node: u32, beyond_budget: bool) -> PyResult<Vec<(u32, [u8; 32], u32, u32)>> {
        let ledger = self.read();
        Self::known(ledger.web().graph(), &[node]).map_err(PyErr::from)?;
        let live = if beyond_budget {
            ledger.beyond_budget(node)
        } else {
            ledger.live_certificates(node)
        };
        Ok(live
            .into_iter()
            .map(|cert| (cert.issuer, cert.id, cert.from, cert.until))
            .collect())
    }

    fn live_record<'py>(
        &self,
        py: Python<'py>,
        issuer: u32,
        subject: u32,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let ledger = self.read();
        Self::known(ledger.web().graph(), &[issuer, subject]).map_err(PyErr::from)?;
        Ok(ledger
            .live_record(issuer, subject)
            .map(|record| PyBytes::new(py, &record)))
    }

    fn issued(&self, issuer: u32) -> usize {
        self.read().issued(issuer)
    }

    fn flow(&self, py: Python<'_>, anchors: Vec<u32>, target: u32, limit: u32) -> Result<u32, BindingError> {
        let mut nodes = anchors.clone();
        nodes.push(target);
        self.search(py, &nodes, |ledger, _| {
            flow(ledger.web().graph(), &anchors, target, limit, true)
        })
    }

    fn advogato<'py>(
        &self,
        py: Python<'py>,
        seeds: Vec<u32>,
        capacities: Vec<u32>,
    ) -> Result<Bound<'py, PyArray1<u32>>, BindingError> {
        let nodes = self.search(py, &seeds, |ledger, _| {
            advogato(ledger.web().graph(), &seeds, &capacities)
        })?;
        Ok(nodes.into_pyarray(py))
    }
}
