//! What waits to be sent to one peer: by class, bounded in bytes, with a named policy when full.
use std::collections::VecDeque;
use std::sync::Arc;

/// How urgent a frame is; earlier classes go first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Class {
    /// Stream pings and their answers, news about hosts.
    Liveness = 0,
    /// Requests and offers: never dropped, the caller is told to wait.
    Team = 1,
    /// Vectors, pulls, tree changes.
    Control = 2,
    /// Batches. Dropped when full: the vectors repair that.
    Bulk = 3,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 4] = [Self::Liveness, Self::Team, Self::Control, Self::Bulk];

    /// Most bytes that may wait in this class for one peer.
    #[must_use]
    pub fn limit(self) -> usize {
        match self {
            Self::Liveness => 256 << 10,
            Self::Team => 1 << 20,
            Self::Control => 2 << 20,
            Self::Bulk => 4 << 20,
        }
    }
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pushed {
    /// It waits.
    Queued,
    /// It, or older frames of its class, were dropped; repair will bring the contents.
    Dropped,
    /// Not taken: try again later. Only [`Class::Team`].
    Full,
}

/// Frames for one peer.
#[derive(Debug, Default)]
pub struct OutQueue {
    lanes: [VecDeque<Arc<[u8]>>; 4],
    bytes: [usize; 4],
    dropped: u64,
}

impl OutQueue {
    /// Adds a frame.
    ///
    /// Liveness drops the oldest (a stale ping says nothing), control and bulk the newest (order matters to a log).
    pub fn push(&mut self, class: Class, frame: Arc<[u8]>) -> Pushed {
        let lane = class as usize;
        let mut result = Pushed::Queued;
        while self.bytes[lane] + frame.len() > class.limit() && !self.lanes[lane].is_empty() {
            match class {
                Class::Team => return Pushed::Full,
                Class::Control | Class::Bulk => {
                    self.dropped += 1;
                    return Pushed::Dropped;
                }
                Class::Liveness => {
                    let old = self.lanes[lane].pop_front().map_or(0, |old| old.len());
                    self.bytes[lane] -= old;
                    self.dropped += 1;
                    result = Pushed::Dropped;
                }
            }
        }
        self.bytes[lane] += frame.len();
        self.lanes[lane].push_back(frame);
        result
    }

    /// The next frame to send among classes `from..=to`.
    pub fn pop(&mut self, from: Class, to: Class) -> Option<Arc<[u8]>> {
        (from as usize..=to as usize).find_map(|lane| {
            let frame = self.lanes[lane].pop_front()?;
            self.bytes[lane] -= frame.len();
            Some(frame)
        })
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Frames dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize) -> Arc<[u8]> {
        vec![0; len].into()
    }

    #[test]
    fn bytes_stay_below_the_limit_and_match_the_parts() {
        let mut queue = OutQueue::default();
        for _ in 0..10_000 {
            for class in Class::ALL {
                queue.push(class, frame(4096));
            }
        }
        assert!(queue.bytes() <= Class::ALL.iter().map(|c| c.limit()).sum());
        assert!(queue.dropped() > 0);
        let mut rest = queue.bytes();
        while let Some(frame) = queue.pop(Class::Liveness, Class::Bulk) {
            rest -= frame.len();
        }
        assert_eq!((rest, queue.bytes()), (0, 0));
    }

    #[test]
    fn team_frames_push_back_and_liveness_overtakes() {
        let mut queue = OutQueue::default();
        queue.push(Class::Bulk, frame(10));
        while queue.push(Class::Team, frame(1 << 16)) == Pushed::Queued {}
        assert_eq!(queue.push(Class::Team, frame(1 << 16)), Pushed::Full);
        assert_eq!(queue.push(Class::Liveness, frame(3)), Pushed::Queued);
        assert_eq!(queue.pop(Class::Liveness, Class::Bulk).map(|f| f.len()), Some(3));
    }
}
