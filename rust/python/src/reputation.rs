//! Binding of `pandacore_trust`'s reputation store.
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pandacore_trust::{
    Exclusion, Rating, Report, Reputation, ReputationError, ReputationPolicy, SecondHand, Standing,
};
use pyo3::import_exception;
use pyo3::prelude::*;

use crate::detach::off_gil;
use crate::error::BindingError;

import_exception!(pandacore.errors, BadSignature);
import_exception!(pandacore.errors, ForeignCollective);
import_exception!(pandacore.errors, ImpossibleReport);
import_exception!(pandacore.errors, MalformedRecord);
import_exception!(pandacore.errors, Overloaded);
import_exception!(pandacore.errors, SelfStatement);
import_exception!(pandacore.errors, ShapeError);
import_exception!(pandacore.errors, StaleReport);
import_exception!(pandacore.errors, UntrustedWitness);

impl From<ReputationError> for BindingError {
    fn from(error: ReputationError) -> Self {
        let text = error.to_string();
        match error {
            ReputationError::Full { .. } => Overloaded::new_err(text),
            ReputationError::AboutItself | ReputationError::AboutReceiver => SelfStatement::new_err(text),
            ReputationError::NotTrusted => UntrustedWitness::new_err(text),
            ReputationError::Stale | ReputationError::TooSoon | ReputationError::NotFresh => {
                StaleReport::new_err(text)
            }
            ReputationError::Impossible => ImpossibleReport::new_err(text),
            ReputationError::Malformed { .. } => MalformedRecord::new_err(text),
            ReputationError::ForeignCollective => ForeignCollective::new_err(text),
            ReputationError::BadSignature => BadSignature::new_err(text),
        }
        .into()
    }
}

/// The fields of a report whose signature and collective were checked:
/// (witness, subject, epoch, counter, x, y).
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a flat tuple, named in Python")]
pub(crate) fn open_report(
    report: &[u8],
    collective: [u8; 32],
) -> Result<([u8; 32], [u8; 32], u64, u64, f64, f64), BindingError> {
    let report = Report::decode(report)?;
    report.verify(&collective)?;
    let Rating { x, y } = report.rating;
    Ok((
        report.witness.0,
        report.subject.0,
        report.epoch,
        report.counter,
        x,
        y,
    ))
}

#[pyclass(frozen, name = "ReputationCore", module = "pandacore._core")]
pub(crate) struct PyReputation(Mutex<Reputation>);

impl PyReputation {
    fn lock(&self) -> MutexGuard<'_, Reputation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn contiguous<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array
        .as_slice()
        .map_err(|_| ShapeError::new_err("the array is not contiguous"))
}

#[pymethods]
impl PyReputation {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the policy, named in Python")]
    fn new(
        decay: f64,
        idle: f64,
        long_decay: f64,
        long_exclusion: (f64, f64),
        aspiration: f64,
        deviation: f64,
        slack: f64,
        weight: f64,
        witness_limit: f64,
        mean_limit: Option<f64>,
        confident: (f64, f64),
        second_hand: &str,
        share: f64,
        watchdog: (f64, f64),
        report_age: u32,
        capacity: usize,
    ) -> Self {
        let (rate, probability) = confident;
        let policy = ReputationPolicy {
            decay,
            idle,
            long_decay,
            long_exclusion,
            aspiration,
            deviation,
            slack,
            weight,
            witness_limit,
            exclusion: mean_limit.map_or(Exclusion::Confident { rate, probability }, Exclusion::Mean),
            second_hand: match second_hand {
                "merged" => SecondHand::Merged,
                "capped" => SecondHand::Capped { share },
                _ => SecondHand::Ignored,
            },
            false_positive: watchdog.0,
            false_negative: watchdog.1,
            report_age,
        };
        Self(Mutex::new(Reputation::new(policy, capacity)))
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.lock().memory_bytes()
    }

    fn observe(&self, observer: u32, peer: u32, bad: bool, epoch: u32) -> Result<(), BindingError> {
        Ok(self.lock().observe(observer, peer, bad, epoch)?)
    }

    fn observe_many(
        &self,
        py: Python<'_>,
        observers: PyReadonlyArray1<'_, u32>,
        peers: PyReadonlyArray1<'_, u32>,
        bad: PyReadonlyArray1<'_, bool>,
        epoch: u32,
    ) -> Result<(), BindingError> {
        let (observers, peers, bad) = (contiguous(&observers)?, contiguous(&peers)?, contiguous(&bad)?);
        if observers.len() != peers.len() || peers.len() != bad.len() {
            return Err(ShapeError::new_err("the arrays have different lengths").into());
        }
        off_gil(py, || {
            self.lock()
                .observe_all(observers, peers, bad, epoch)
                .map_err(|(_, error)| BindingError::from(error))
        })
    }

    /// ((first x, y), (second x, y), (combined x, y), observations, estimate, long estimate, score, certainty,
    /// excluded)
    #[expect(clippy::type_complexity, reason = "a flat tuple, named in Python")]
    fn standing(
        &self,
        observer: u32,
        peer: u32,
        epoch: u32,
    ) -> ((f64, f64), (f64, f64), (f64, f64), u32, f64, f64, f64, f64, bool) {
        let s: Standing = self.lock().standing(observer, peer, epoch);
        let pair = |rating: Rating| (rating.x, rating.y);
        (
            pair(s.first),
            pair(s.second),
            pair(s.combined),
            s.observations,
            s.estimate,
            s.long_estimate,
            s.score,
            s.certainty,
            s.excluded,
        )
    }

    /// Scores and exclusions of pairs.
    #[expect(clippy::type_complexity, reason = "two arrays")]
    fn scores<'py>(
        &self,
        py: Python<'py>,
        observers: PyReadonlyArray1<'py, u32>,
        peers: PyReadonlyArray1<'py, u32>,
        epoch: u32,
    ) -> Result<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<bool>>), BindingError> {
        let (observers, peers) = (contiguous(&observers)?, contiguous(&peers)?);
        if observers.len() != peers.len() {
            return Err(ShapeError::new_err("the arrays have different lengths").into());
        }
        let (scores, excluded): (Vec<f64>, Vec<bool>) = off_gil(py, || {
            let store = self.lock();
            let one = |(&observer, &peer): (&u32, &u32)| {
                let standing = store.standing(observer, peer, epoch);
                (standing.score, standing.excluded)
            };
            Ok::<_, BindingError>(observers.iter().zip(peers).map(one).unzip())
        })?;
        Ok((scores.into_pyarray(py), excluded.into_pyarray(py)))
    }

    fn rank<'py>(
        &self,
        py: Python<'py>,
        observer: u32,
        candidates: PyReadonlyArray1<'py, u32>,
        epoch: u32,
    ) -> Result<Bound<'py, PyArray1<u32>>, BindingError> {
        let candidates = contiguous(&candidates)?;
        let ranked = off_gil(py, || {
            Ok::<_, BindingError>(self.lock().rank(observer, candidates, epoch))
        })?;
        Ok(ranked.into_pyarray(py))
    }

    /// (merged, deviation, (witness x, y))
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of a report and its circumstances"
    )]
    fn hear(
        &self,
        receiver: u32,
        witness: u32,
        subject: u32,
        trusted: bool,
        written: u64,
        counter: u64,
        x: f64,
        y: f64,
        epoch: u32,
    ) -> Result<(bool, f64, (f64, f64)), BindingError> {
        let rating = Rating { x, y };
        let heard = self.lock().hear(
            receiver, witness, subject, trusted, written, counter, rating, epoch,
        )?;
        Ok((heard.merged, heard.deviation, (heard.witness.x, heard.witness.y)))
    }

    fn witness(&self, receiver: u32, witness: u32) -> (f64, f64) {
        let rating = self.lock().witness(receiver, witness);
        (rating.x, rating.y)
    }

    fn certifier_event(&self, certifier: u32, bad: bool) -> Result<(), BindingError> {
        Ok(self.lock().certifier_event(certifier, bad)?)
    }

    fn certifier(&self, certifier: u32) -> (f64, f64) {
        let rating = self.lock().certifier(certifier);
        (rating.x, rating.y)
    }

    fn forget(&self, py: Python<'_>, epoch: u32, closeness: f64) -> Result<usize, BindingError> {
        off_gil(py, || Ok::<_, BindingError>(self.lock().forget(epoch, closeness)))
    }
}
