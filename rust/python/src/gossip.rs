//! Binding of `pandacore_node`: a host of a collective.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pandacore_gossip::{
    Agent, Announcement, BadAnnouncement, Command, Config, HostId, JoinState, MAX_PAYLOAD, RecordKind, Sig,
    State, StopReason, Subscription, hosting_message,
};
use pandacore_node::{
    Feed, Handle, Options, Refused, Seed, StartError, StateError as DirError, TEAM_NAME, anchor, start,
    team_identity, ticket_message,
};
use pandacore_trust::{AgentId, KeyPair};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::detach::off_gil;
use crate::error::BindingError;
use crate::matching::PyRegistry;

import_exception!(pandacore.errors, ConfigError);
import_exception!(pandacore.errors, DataDirLocked);
import_exception!(pandacore.errors, ForkError);
import_exception!(pandacore.errors, Overloaded);
import_exception!(pandacore.errors, PayloadTooLarge);
import_exception!(pandacore.errors, ProtocolError);
import_exception!(pandacore.errors, ShapeError);
import_exception!(pandacore.errors, StateError);

impl From<StartError> for BindingError {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        match error {
            StartError::State(DirError::Locked { .. }) => DataDirLocked::new_err(text),
            StartError::Bind(..) | StartError::State(_) => ConfigError::new_err(text),
            StartError::Setup(_) => StateError::new_err(text),
        }
        .into()
    }
}

impl From<BadAnnouncement> for BindingError {
    fn from(error: BadAnnouncement) -> Self {
        let text = error.to_string();
        match error {
            BadAnnouncement::TooLong(_) => PayloadTooLarge::new_err(text),
            _ => ConfigError::new_err(text),
        }
        .into()
    }
}

fn key32(what: &str, bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| ShapeError::new_err(format!("{what} has 32 bytes, this one {}", bytes.len())))
}

fn sig(bytes: &[u8]) -> PyResult<Sig> {
    let bytes: [u8; 64] = bytes
        .try_into()
        .map_err(|_| ShapeError::new_err(format!("a signature has 64 bytes, this one {}", bytes.len())))?;
    Ok(Sig::new(bytes))
}

fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse()
        .map_err(|_| ConfigError::new_err(format!("{text:?} is not an address such as 127.0.0.1:7000")))
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Alive => "alive",
        State::Suspect => "suspect",
        State::Down => "down",
        State::Left => "left",
    }
}

/// The payload of an agent's announcement.
#[pyfunction]
#[pyo3(signature = (
    capabilities, *, name, description, endpoint, since, proof, not_after, load, concurrency, cost, subscription,
    certificates, subscription_text
))]
#[expect(clippy::too_many_arguments, reason = "the fields of an announcement")]
pub(crate) fn encode_announcement<'py>(
    py: Python<'py>,
    capabilities: Vec<String>,
    name: &str,
    description: &str,
    endpoint: &str,
    since: u64,
    proof: &[u8],
    not_after: u64,
    load: u16,
    concurrency: u16,
    cost: u16,
    subscription: Option<(String, f32, Vec<u8>)>,
    certificates: &[u8],
    subscription_text: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let proof = if proof.is_empty() {
        Sig([[0; 32]; 2])
    } else {
        sig(proof)?
    };
    let subscription = subscription.as_ref().map(|(model, scale, codes)| Subscription {
        model,
        scale: *scale,
        codes,
    });
    let stated = Announcement {
        since,
        proof,
        not_after,
        load,
        concurrency,
        cost,
        name,
        description,
        endpoint,
        packed: &[],
        subscription,
        certificates,
        subscription_text,
    };
    let payload = stated
        .encode(capabilities.iter().map(String::as_str))
        .map_err(BindingError::from)?;
    Ok(PyBytes::new(py, &payload))
}

/// The key of a certificate or revocation in a log: the hash of its signed bytes.
#[pyfunction]
pub(crate) fn trust_record_key<'py>(py: Python<'py>, record: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    match pandacore_trust::Record::decode(record) {
        Ok(record) => Ok(PyBytes::new(py, &record.id())),
        Err(refusal) => Err(ProtocolError::new_err(format!(
            "not a certificate or revocation: {refusal}"
        ))),
    }
}

/// What an agent signs to agree that a host runs it.
#[pyfunction(name = "hosting_message")]
pub(crate) fn py_hosting_message<'py>(
    py: Python<'py>,
    collective: &[u8],
    agent: &[u8],
    host: &[u8],
    since: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let host = HostId(key32("a host id", host)?);
    let message = hosting_message(
        &key32("a collective id", collective)?,
        &key32("an agent id", agent)?,
        &host,
        since,
    );
    Ok(PyBytes::new(py, &message))
}

/// What an admission key signs to let a host in.
#[pyfunction(name = "ticket_message")]
pub(crate) fn py_ticket_message<'py>(
    py: Python<'py>,
    collective: &[u8],
    host: &[u8],
    not_after: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let host = HostId(key32("a host id", host)?);
    Ok(PyBytes::new(
        py,
        &ticket_message(&key32("a collective id", collective)?, &host, not_after),
    ))
}

/// What a host serves the team plane with: a fresh private key and its certificate, in DER.
#[pyfunction(name = "team_identity")]
pub(crate) fn py_team_identity<'py>(
    py: Python<'py>,
    seed: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let key = KeyPair::from_seed(&key32("a key's seed", seed)?);
    let made = team_identity(&key).map_err(StateError::new_err)?;
    Ok((PyBytes::new(py, &made.key), PyBytes::new(py, &made.certificate)))
}

/// What callers of a host's team plane go by: the one certificate to trust, in DER, and the name that it stands for.
#[pyfunction]
pub(crate) fn team_anchor<'py>(
    py: Python<'py>,
    host: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, &'static str)> {
    let host = HostId(key32("a host id", host)?);
    Ok((PyBytes::new(py, &anchor(&host)), TEAM_NAME))
}

/// An agent as Python gets it: one allocation a field, made under the interpreter's lock after the node's is released.
struct Entry {
    id: [u8; 32],
    host: HostId,
    epoch: u32,
    seq: u64,
    payload: Fields,
}

struct Fields {
    since: u64,
    not_after: u64,
    load: u16,
    concurrency: u16,
    cost: u16,
    name: String,
    description: String,
    endpoint: String,
    capabilities: Vec<String>,
    subscription: Option<(String, f32, Vec<u8>)>,
    certificates: Vec<u8>,
    subscription_text: String,
}

impl Entry {
    fn of(agent: &Agent<'_>) -> Self {
        let stated = &agent.announcement;
        Self {
            id: agent.id,
            host: agent.host,
            epoch: agent.epoch,
            seq: agent.seq,
            payload: Fields {
                since: stated.since,
                not_after: stated.not_after,
                load: stated.load,
                concurrency: stated.concurrency,
                cost: stated.cost,
                name: stated.name.to_owned(),
                description: stated.description.to_owned(),
                endpoint: stated.endpoint.to_owned(),
                capabilities: stated.capabilities().map(str::to_owned).collect(),
                subscription: stated
                    .subscription
                    .map(|s| (s.model.to_owned(), s.scale, s.codes.to_vec())),
                certificates: stated.certificates.to_vec(),
                subscription_text: stated.subscription_text.to_owned(),
            },
        }
    }

    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        let Fields {
            since,
            not_after,
            load,
            concurrency,
            cost,
            name,
            description,
            endpoint,
            capabilities,
            subscription,
            certificates,
            subscription_text,
        } = self.payload;
        dict.set_item("agent", PyBytes::new(py, &self.id))?;
        dict.set_item("host", PyBytes::new(py, &self.host.0))?;
        dict.set_item("version", (self.epoch, self.seq))?;
        dict.set_item("since", since)?;
        dict.set_item("not_after", not_after)?;
        dict.set_item("load", load)?;
        dict.set_item("concurrency", concurrency)?;
        dict.set_item("cost", cost)?;
        dict.set_item("name", name)?;
        dict.set_item("description", description)?;
        dict.set_item("endpoint", endpoint)?;
        dict.set_item("capabilities", capabilities)?;
        dict.set_item(
            "subscription",
            subscription.map(|(model, scale, codes)| (model, scale, PyBytes::new(py, &codes).unbind())),
        )?;
        dict.set_item("certificates", PyBytes::new(py, &certificates))?;
        dict.set_item("subscription_text", subscription_text)?;
        Ok(dict)
    }
}

#[pyclass(frozen, name = "NodeCore", module = "pandacore._core")]
pub(crate) struct PyNode {
    handle: Handle,
    feeds: Mutex<Vec<(Py<PyRegistry>, Feed)>>,
    host: HostId,
    collective: [u8; 32],
}

impl PyNode {
    fn own(&self) -> PyResult<&Handle> {
        if self.handle.is_own() {
            return Ok(&self.handle);
        }
        Err(ForkError::new_err(format!(
            "the node belongs to process {}, this is its fork {}",
            self.handle.pid(),
            std::process::id()
        )))
    }

    fn command(&self, command: Command) -> PyResult<()> {
        if self.own()?.command(command) {
            return Ok(());
        }
        Err(StateError::new_err(match self.handle.stopped() {
            Some(StopReason::KeyInUse { .. }) => "the node stopped: another process runs with the same key",
            Some(StopReason::EpochsUsedUp) => "the node stopped: its start counter is used up",
            Some(StopReason::CounterNotWritten) => {
                "the node stopped: its start counter could not be written to its state folder"
            }
            None => "the node has ended",
        }))
    }
}

#[pymethods]
impl PyNode {
    #[new]
    #[pyo3(signature = (key_seed, collective, *, bind, advertise, seeds, state_dir, admission, ticket, seed))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python constructor"
    )]
    fn new(
        py: Python<'_>,
        key_seed: &[u8],
        collective: &[u8],
        bind: &str,
        advertise: Option<&str>,
        seeds: Vec<(String, Option<Vec<u8>>)>,
        state_dir: Option<PathBuf>,
        admission: Option<&[u8]>,
        ticket: Option<(u64, Vec<u8>)>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let key = KeyPair::from_seed(&key32("a key seed", key_seed)?);
        let collective = key32("a collective id", collective)?;
        let host = HostId(key.id().0);
        let mut hosts = Vec::with_capacity(seeds.len());
        for (text, pinned) in &seeds {
            let pinned = pinned.as_deref().map(|id| key32("a host id", id)).transpose()?;
            hosts.push(Seed {
                address: address(text)?,
                host: pinned.map(HostId),
            });
        }
        let options = Options {
            key,
            collective,
            bind: address(bind)?,
            advertise: advertise.map(address).transpose()?,
            seeds: hosts,
            state_dir,
            admission: admission
                .map(|id| key32("an admission key", id))
                .transpose()?
                .map(AgentId),
            ticket: ticket
                .map(|(until, bytes)| Ok::<_, PyErr>((until, sig(&bytes)?)))
                .transpose()?,
            seed,
            config: Config::default(),
        };
        let handle = off_gil(py, || start(options))?;
        Ok(Self {
            handle,
            feeds: Mutex::default(),
            host,
            collective,
        })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.handle.bound().port()
    }

    #[getter]
    fn address(&self) -> String {
        self.handle.address().to_string()
    }

    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.host.0)
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u32> {
        let handle = self.own()?;
        Ok(py.detach(|| handle.read(|node| node.record().epoch)))
    }

    #[getter]
    fn version(&self) -> PyResult<u64> {
        Ok(self.own()?.version())
    }

    #[getter]
    fn ended(&self) -> PyResult<bool> {
        Ok(self.own()?.ended())
    }

    /// "searching", "fetching" or "complete".
    fn join_state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let handle = self.own()?;
        Ok(
            match py.detach(|| handle.read(pandacore_gossip::Node::join_state)) {
                JoinState::Searching => "searching",
                JoinState::Fetching => "fetching",
                JoinState::Complete => "complete",
            },
        )
    }

    /// Why a seed refused, as (kind, address, ours, theirs or text), or None.
    #[expect(clippy::type_complexity, reason = "a kind and its details")]
    fn refusal(&self, py: Python<'_>) -> PyResult<Option<(&'static str, String, Py<PyAny>, Py<PyAny>)>> {
        let bytes = |value: &[u8; 32]| PyBytes::new(py, value).into_any().unbind();
        let text = |value: &str| value.into_pyobject(py).map(|s| s.into_any().unbind());
        Ok(match self.own()?.refused() {
            None => None,
            Some(Refused::Collective {
                address,
                ours,
                theirs,
            }) => Some(("collective", address.to_string(), bytes(&ours), bytes(&theirs))),
            Some(Refused::Ticket(address)) => Some(("ticket", address.to_string(), py.None(), py.None())),
            Some(Refused::Key {
                address,
                expected,
                found,
            }) => Some(("key", address.to_string(), bytes(&expected.0), bytes(&found.0))),
            Some(Refused::Protocol(address, why)) => {
                Some(("protocol", address.to_string(), py.None(), text(&why)?))
            }
        })
    }

    /// Why the node stopped by itself: "key in use", "epochs used up", "start counter not written" or None.
    fn stop_reason(&self) -> PyResult<Option<&'static str>> {
        Ok(self.own()?.stopped().map(|reason| match reason {
            StopReason::KeyInUse { .. } => "key in use",
            StopReason::EpochsUsedUp => "epochs used up",
            StopReason::CounterNotWritten => "start counter not written",
        }))
    }

    /// Waits until the version is above `after` or the time is over; returns the version.
    fn wait(&self, py: Python<'_>, after: u64, timeout_s: f64) -> PyResult<u64> {
        let handle = self.own()?;
        let timeout = Duration::try_from_secs_f64(timeout_s.max(0.0))
            .map_err(|_| ConfigError::new_err(format!("timeout_s is {timeout_s}; it must be finite")))?;
        Ok(py.detach(|| handle.wait(after, timeout)))
    }

    fn descriptor(&self) -> PyResult<i32> {
        Ok(self.own()?.descriptor())
    }

    fn drain(&self) -> PyResult<()> {
        self.own()?.drain();
        Ok(())
    }

    /// Puts records into the own log: (kind, key, payload or None to take it back). Returns the number of the last.
    fn publish(&self, py: Python<'_>, records: Vec<(u8, Vec<u8>, Option<Vec<u8>>)>) -> PyResult<u64> {
        let handle = self.own()?;
        let mut rows = Vec::with_capacity(records.len());
        let mut bytes = 0;
        for (kind, key, payload) in records {
            if let Some(payload) = &payload
                && payload.len() > MAX_PAYLOAD
            {
                return Err(PayloadTooLarge::new_err(format!(
                    "the record has {} bytes, at most {MAX_PAYLOAD} are allowed",
                    payload.len()
                )));
            }
            bytes += 64 + payload.as_ref().map_or(0, Vec::len);
            rows.push((RecordKind(kind), key32("a record key", &key)?, payload));
        }
        let (waiting, limit) = py.detach(|| handle.read(|node| (node.pending_bytes(), node.pending_limit())));
        if waiting + bytes > limit {
            return Err(Overloaded::new_err(format!(
                "{waiting} bytes of announcements wait already, {bytes} more would pass the limit of {limit}"
            )));
        }
        self.command(Command::Publish(rows))?;
        Ok(py.detach(|| handle.read(pandacore_gossip::Node::last_seq)))
    }

    /// Publishes `count` agents with records of about 300 bytes; for benches.
    fn publish_synthetic(&self, py: Python<'_>, count: u32, seed: u64, capabilities: u32) -> PyResult<()> {
        let mut rng = pandacore_matching::Rng::new(seed);
        let mut made = 0;
        while made < count {
            let part = (count - made).min(10_000);
            let rows = py.detach(|| {
                (0..part)
                    .map(|i| {
                        let (id, payload) =
                            pandacore_node::measure::synthetic(made + i, capabilities, &mut rng);
                        (RecordKind::ANNOUNCEMENT, id, Some(payload))
                    })
                    .collect()
            });
            self.command(Command::Publish(rows))?;
            made += part;
        }
        Ok(())
    }

    /// (id, state, epoch, incarnation, addresses, agents) of every known host, this one first.
    #[expect(clippy::type_complexity, reason = "the columns of one row")]
    fn members(
        &self,
        py: Python<'_>,
    ) -> PyResult<Vec<(Py<PyBytes>, &'static str, u32, u32, Vec<String>, usize)>> {
        let handle = self.own()?;
        let rows = py.detach(|| {
            handle.read(|node| {
                let me = node.record();
                let own = node.state(&me.host).unwrap_or(State::Alive);
                let mut rows = vec![(me.clone(), own, node.replica().agents_of(&me.host))];
                rows.extend(node.members().map(|member| {
                    let agents = if member.state.live() {
                        node.replica().agents_of(&member.record.host)
                    } else {
                        0
                    };
                    (member.record, member.state, agents)
                }));
                rows
            })
        });
        Ok(rows
            .into_iter()
            .map(|(record, state, agents)| {
                let addresses = [Some(record.address), record.other]
                    .into_iter()
                    .flatten()
                    .map(|a| a.to_string())
                    .collect();
                let id = PyBytes::new(py, &record.host.0).unbind();
                (
                    id,
                    state_name(state),
                    record.epoch,
                    record.incarnation,
                    addresses,
                    agents,
                )
            })
            .collect())
    }

    fn members_version(&self, py: Python<'_>) -> PyResult<u64> {
        let handle = self.own()?;
        Ok(py.detach(|| handle.read(pandacore_gossip::Node::members_version)))
    }

    /// The announcement of an agent, or None.
    fn agent<'py>(&self, py: Python<'py>, agent_id: &[u8]) -> PyResult<Option<Bound<'py, PyDict>>> {
        let handle = self.own()?;
        let id = key32("an agent id", agent_id)?;
        let entry = py.detach(|| {
            handle.read(|node| {
                node.replica()
                    .agent(node.collective(), &id)
                    .map(|agent| Entry::of(&agent))
            })
        });
        entry.map(|entry| entry.into_dict(py)).transpose()
    }

    /// Whether the agent agreed to be run by the host that announces it.
    fn agent_agreed(&self, py: Python<'_>, agent_id: &[u8]) -> PyResult<bool> {
        let handle = self.own()?;
        let id = key32("an agent id", agent_id)?;
        Ok(py.detach(|| {
            handle.read(|node| {
                node.replica()
                    .agent(node.collective(), &id)
                    .is_some_and(|agent| agent.announcement.agreed(node.collective(), &id, &agent.host))
            })
        }))
    }

    /// About `limit` agents from a place on, and the next place or None.
    #[expect(clippy::type_complexity, reason = "a page and where to go on")]
    fn agents<'py>(
        &self,
        py: Python<'py>,
        place: Option<(Vec<u8>, u64)>,
        limit: usize,
    ) -> PyResult<(Vec<Bound<'py, PyDict>>, Option<(Py<PyBytes>, u64)>)> {
        let handle = self.own()?;
        let from = match place {
            Some((host, first)) => Some((HostId(key32("a host id", &host)?), first)),
            None => None,
        };
        let (entries, next) = py.detach(|| {
            handle.read(|node| {
                let (agents, next) = node.replica().page(node.collective(), from, limit.max(1));
                (agents.iter().map(Entry::of).collect::<Vec<_>>(), next)
            })
        });
        let entries = entries
            .into_iter()
            .map(|entry| entry.into_dict(py))
            .collect::<PyResult<_>>()?;
        Ok((
            entries,
            next.map(|(host, first)| (PyBytes::new(py, &host.0).unbind(), first)),
        ))
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<usize> {
        let handle = self.own()?;
        Ok(py.detach(|| handle.read(|node| node.replica().rows())))
    }

    /// Version, whether everything must be read, and the (kind, key) of rows changed after `after`.
    #[expect(clippy::type_complexity, reason = "a version and its rows")]
    fn changes(&self, py: Python<'_>, after: u64) -> PyResult<(u64, bool, Vec<(u8, Py<PyBytes>)>)> {
        let handle = self.own()?;
        let delta = py.detach(|| handle.read(|node| node.changes(after)));
        let rows = delta
            .rows
            .iter()
            .map(|row| (row.kind.0, PyBytes::new(py, &row.key).unbind()))
            .collect();
        Ok((delta.version, delta.reset, rows))
    }

    /// Payload of a record that a live host has in its log.
    fn payload<'py>(&self, py: Python<'py>, kind: u8, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let handle = self.own()?;
        let key = key32("a record key", key)?;
        let payload = py.detach(|| {
            handle.read(|node| node.replica().payload(RecordKind(kind), &key).map(<[u8]>::to_vec))
        });
        Ok(payload.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Payloads of all records of a kind that live hosts have in their logs.
    fn payloads<'py>(&self, py: Python<'py>, kind: u8) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let handle = self.own()?;
        let payloads = py.detach(|| {
            let mut payloads = Vec::new();
            handle.read(|node| {
                node.replica()
                    .for_each_record(RecordKind(kind), |_, payload| payloads.push(payload.to_vec()));
            });
            payloads
        });
        Ok(payloads.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Brings a registry up to date; returns (announced, withdrawn, refused).
    fn feed(&self, py: Python<'_>, registry: &Bound<'_, PyRegistry>) -> PyResult<(usize, usize, usize)> {
        let handle = self.own()?;
        let shared = registry.get().shared();
        let name = registry.as_ptr() as usize;
        let keep = registry.clone().unbind();
        let fed = off_gil(py, || {
            let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
            let at = match feeds
                .iter()
                .position(|(known, _)| known.as_ptr() as usize == name)
            {
                Some(at) => at,
                None => {
                    feeds.push((keep, Feed::default()));
                    feeds.len() - 1
                }
            };
            feeds[at].1.apply(handle, &shared)
        })?;
        Ok((fed.announced, fed.withdrawn, fed.refused))
    }

    /// Asks the whole collective under a number that this host has not used before.
    fn request(&self, number: u64, capabilities: Vec<String>, patience_s: u16) -> PyResult<()> {
        self.command(Command::Request {
            number,
            capabilities,
            patience_s,
        })
    }

    /// (host, agents) of the offers for a request.
    #[expect(clippy::type_complexity, reason = "a host and its agents")]
    fn offers(&self, py: Python<'_>, number: u64) -> PyResult<Vec<(Py<PyBytes>, Vec<Py<PyBytes>>)>> {
        let handle = self.own()?;
        let offers: Vec<_> = py.detach(|| handle.read(|node| node.offers(number).cloned().collect()));
        Ok(offers
            .iter()
            .map(|offer| {
                let agents = offer
                    .agents
                    .iter()
                    .map(|id| PyBytes::new(py, id).unbind())
                    .collect();
                (PyBytes::new(py, &offer.host.0).unbind(), agents)
            })
            .collect())
    }

    /// (arrival, origin, number, capabilities) of open requests that arrived after `after`.
    #[expect(clippy::type_complexity, reason = "the columns of one row")]
    fn requests(&self, py: Python<'_>, after: u64) -> PyResult<Vec<(u64, Py<PyBytes>, u64, Vec<String>)>> {
        let handle = self.own()?;
        let requests: Vec<_> = py.detach(|| handle.read(|node| node.requests(after).cloned().collect()));
        Ok(requests
            .into_iter()
            .map(|r| {
                (
                    r.arrival,
                    PyBytes::new(py, &r.origin.0).unbind(),
                    r.number,
                    r.capabilities,
                )
            })
            .collect())
    }

    fn offer(&self, origin: &[u8], number: u64, agents: Vec<Vec<u8>>) -> PyResult<()> {
        let agents = agents
            .iter()
            .map(|id| key32("an agent id", id))
            .collect::<PyResult<_>>()?;
        self.command(Command::Offer {
            origin: HostId(key32("a host id", origin)?),
            number,
            agents,
        })
    }

    /// The hash of live hosts and their rows.
    fn root<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let handle = self.own()?;
        let root = py.detach(|| handle.read(|node| node.root().bytes()));
        Ok(PyBytes::new(py, &root))
    }

    /// What was counted, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.own()?;
        let (counters, memory, health) = py
            .detach(|| handle.read(|node| (node.counters().clone(), node.replica().memory(), node.health())));
        let traffic = handle.traffic();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("datagrams_out", counters.datagrams_out),
            ("datagram_bytes_out", counters.datagram_bytes_out),
            ("frames_out", counters.frames_out),
            ("frame_bytes_out", counters.frame_bytes_out),
            ("probes", counters.probes),
            ("failed_probes", counters.failed_probes),
            ("suspicions", counters.suspicions),
            ("refutations", counters.refutations),
            ("deaths", counters.deaths),
            ("lags", counters.lags),
            ("pushed_new", counters.pushed_new),
            ("pushed_again", counters.pushed_again),
            ("grafted", counters.grafted),
            ("pulled", counters.pulled),
            ("repaired", counters.repaired),
            ("compared_equal", counters.equal),
            ("compared_unequal", counters.unequal),
            ("rejected", counters.rejects.values().sum()),
            ("udp_out", traffic.udp_out),
            ("udp_bytes_out", traffic.udp_bytes_out),
            ("connections", traffic.connections as u64),
            ("dropped", traffic.dropped),
            ("rerouted", traffic.rerouted),
            ("dials", traffic.dials),
            (
                "store_bytes",
                (memory.bodies + memory.entries + memory.rows + memory.table) as u64,
            ),
            ("health", u64::from(health)),
        ] {
            dict.set_item(name, value)?;
        }
        for (why, count) in counters.rejects {
            dict.set_item(format!("rejected.{why:?}").to_lowercase(), count)?;
        }
        Ok(dict)
    }

    #[getter]
    fn collective<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.collective)
    }

    /// Says goodbye and ends.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let handle = self.own()?;
        py.detach(|| handle.leave());
        Ok(())
    }

    /// Ends without a goodbye, as a crash would.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let handle = self.own()?;
        py.detach(|| handle.close());
        Ok(())
    }
}

/// Spreads one rumor over agents with small views:
/// (rounds, rounds to 99.9 %, payload messages, digest messages, merges, seconds).
#[pyfunction]
pub(crate) fn simulate_rumor(
    py: Python<'_>,
    agents: u32,
    loss: f64,
    pushes: u8,
    seed: u64,
) -> (u32, u32, u64, u64, u64, f64) {
    py.detach(|| {
        let start = pandacore_node::Stopwatch::start();
        let mut cohort = pandacore_gossip::cohort::Cohort::new(agents, seed);
        let rumor = pandacore_gossip::cohort::Rumor {
            agents,
            loss,
            pushes,
            seed,
        };
        let spread = cohort.spread(&rumor);
        let seconds = start.seconds();
        (
            spread.rounds,
            spread.rounds_to_most,
            spread.payloads,
            spread.digests,
            spread.merges,
            seconds,
        )
    })
}

/// One round in which every agent sends entries to `fanout` partners: (merges, seconds).
#[pyfunction]
pub(crate) fn simulate_round(py: Python<'_>, agents: u32, fanout: u32, seed: u64) -> (u64, f64) {
    py.detach(|| {
        let mut cohort = pandacore_gossip::cohort::Cohort::new(agents, seed);
        let start = pandacore_node::Stopwatch::start();
        let merges = cohort.round(fanout);
        (merges, start.seconds())
    })
}

/// Averages over agents by pairwise exchanges: (rounds, relative error of the sum).
#[pyfunction]
pub(crate) fn simulate_average(
    py: Python<'_>,
    agents: u32,
    loss: f64,
    tolerance: f64,
    seed: u64,
) -> (u32, f64) {
    let averaging = py.detach(|| pandacore_gossip::cohort::average(agents, loss, tolerance, seed));
    (averaging.rounds, averaging.mass_error)
}

fn figure<T>(result: Result<T, pandacore_gossip::sim::Violation>) -> PyResult<T> {
    result.map_err(|violation| StateError::new_err(format!("the simulation broke a rule {violation}")))
}

/// Random faults from `seeds` seeds on, each followed by a calm phase: a hash over all traces.
#[pyfunction]
pub(crate) fn simulate_faults(py: Python<'_>, first: u64, seeds: u64) -> PyResult<u64> {
    py.detach(|| {
        let mut hash = 0u64;
        for seed in first..first + seeds {
            let plan = pandacore_gossip::sim::Plan::random(seed);
            let report =
                pandacore_gossip::sim::run_or_shrink(&plan, || Box::new(pandacore_gossip::sim::Untouched))
                    .map_err(|failure| StateError::new_err(failure.to_string()))?;
            hash = hash.rotate_left(7) ^ report.trace;
        }
        Ok(hash)
    })
}

/// Crashes hosts in virtual time: (seconds to the first, seconds to all, seconds of a goodbye to all).
#[pyfunction]
pub(crate) fn simulate_detection(
    py: Python<'_>,
    hosts: usize,
    crashes: usize,
    loss: f64,
    seed: u64,
) -> PyResult<(Vec<f64>, Vec<f64>, f64)> {
    let found = figure(py.detach(|| pandacore_gossip::sim::detection(hosts, crashes, loss, seed)))?;
    Ok((found.first, found.all, found.goodbye))
}

/// Watches hosts under packet loss in virtual time: (host hours, deaths, refutations, identity changes).
#[pyfunction]
pub(crate) fn simulate_false_deaths(
    py: Python<'_>,
    hosts: usize,
    hours: f64,
    loss: f64,
    seed: u64,
) -> PyResult<(f64, u64, u64, u64)> {
    let f = figure(py.detach(|| pandacore_gossip::sim::false_deaths(hosts, hours, loss, seed)))?;
    Ok((f.host_hours, f.deaths, f.refutations, f.identity_changes))
}

/// Watches idle hosts in virtual time: (payload bytes, packets) a second and host.
#[pyfunction]
pub(crate) fn simulate_idle(
    py: Python<'_>,
    hosts: usize,
    agents: u32,
    seconds: f64,
    seed: u64,
) -> PyResult<(f64, f64)> {
    let time = Duration::from_secs_f64(seconds.clamp(1.0, 1e6));
    let f = figure(py.detach(|| pandacore_gossip::sim::idle(hosts, agents, time, seed)))?;
    Ok((f.bytes_per_second, f.packets_per_second))
}

/// Pauses a share of the hosts in virtual time: (deaths of others, traffic as a multiple of idle, bytes a second).
#[pyfunction]
pub(crate) fn simulate_pauses(
    py: Python<'_>,
    hosts: usize,
    share: f64,
    rounds: u32,
    seed: u64,
) -> PyResult<(u64, f64, f64)> {
    let f = figure(py.detach(|| pandacore_gossip::sim::pauses(hosts, share, rounds, seed)))?;
    Ok((f.wrong, f.times_idle, f.bytes_per_second))
}

/// Cuts a network in two in virtual time: seconds from the end of it until all know the same.
#[pyfunction]
pub(crate) fn simulate_healing(py: Python<'_>, hosts: usize, seconds: f64, seed: u64) -> PyResult<f64> {
    let time = Duration::from_secs_f64(seconds.clamp(1.0, 1e6));
    Ok(figure(py.detach(|| pandacore_gossip::sim::healing(hosts, time, seed)))?.seconds)
}

/// Spreads changes in virtual time: (redundant pushes for each needed one, share pushed, share that arrives without any
/// comparison, slowest in seconds).
#[pyfunction]
pub(crate) fn simulate_tree(
    py: Python<'_>,
    hosts: usize,
    senders: usize,
    changes: u32,
    loss: f64,
    seed: u64,
) -> PyResult<(f64, f64, f64, f64)> {
    let f = figure(py.detach(|| pandacore_gossip::sim::tree(hosts, senders, changes, loss, seed)))?;
    Ok((f.redundancy, f.pushed, f.alone, f.slowest))
}

/// Changes agents on a replica of `agents`: (seconds for each update, bytes an agent).
#[pyfunction]
pub(crate) fn time_replica(py: Python<'_>, agents: u32, rounds: u32, seed: u64) -> (Vec<f64>, f64) {
    let updates = py.detach(|| pandacore_node::measure::updates(agents, rounds, seed));
    (updates.seconds, updates.bytes_per_agent)
}

/// Bytes of a comparison of equal replicas, and of a list of the places of all hosts.
#[pyfunction]
pub(crate) fn comparison_sizes(hosts: u32) -> (usize, usize) {
    pandacore_gossip::comparison_sizes(hosts)
}
