//! What an agent says about itself, as the payload of a record.
use core::fmt;

use pandacore_trust::AgentId;
use serde::{Deserialize, Serialize};

use crate::batch::MAX_PAYLOAD;
use crate::host::{HostId, Sig};
use crate::wire::Items;

/// Most capabilities of one agent.
pub const MAX_CAPABILITIES: usize = 64;
const MAX_TEXT: usize = 512;

/// What an agent is interested in, as a vector of a named embedding model.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Subscription<'a> {
    /// The embedding model; vectors of different models are never compared.
    pub model: &'a str,
    /// What one step of a code is worth.
    pub scale: f32,
    /// Signed 8-bit codes, one a dimension.
    #[serde(borrow)]
    pub codes: &'a [u8],
}

/// An agent's announcement, borrowed from the record's payload.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Announcement<'a> {
    /// The agent's own counter of its moves between hosts: the host with the highest wins.
    pub since: u64,
    /// The agent's signature of [`hosting_message`].
    pub proof: Sig,
    /// Last second of validity by the wall clock; 0: no end.
    pub not_after: u64,
    /// Queue length.
    pub load: u16,
    /// Subtasks it works on at once.
    pub concurrency: u16,
    /// Price of a subtask, in the collective's unit.
    pub cost: u16,
    /// Display name.
    pub name: &'a str,
    /// One line about it.
    pub description: &'a str,
    /// Where its team plane listens, such as `192.0.2.1:7000`.
    pub endpoint: &'a str,
    /// Capability names as they travel; [`Self::capabilities`] reads them, [`Self::encode`] writes them.
    #[serde(borrow)]
    pub packed: &'a [u8],
    /// Its subscription.
    #[serde(borrow)]
    pub subscription: Option<Subscription<'a>>,
    /// First 16 bytes of the hashes of its certificates, which are records of their own.
    #[serde(borrow)]
    pub certificates: &'a [u8],
    /// What it is interested in, in words: for hosts that embed with another model. Follows the other fields, and
    /// hosts of earlier versions neither write nor miss it.
    #[serde(skip)]
    pub subscription_text: &'a str,
}

/// Why an announcement was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadAnnouncement {
    /// The payload does not decode.
    Malformed,
    /// No capability, or more than [`MAX_CAPABILITIES`].
    Capabilities(usize),
    /// A text is longer than 512 bytes, or is not a single line; the field's name.
    Text(&'static str),
    /// The payload is longer than [`MAX_PAYLOAD`]; in bytes.
    TooLong(usize),
}

impl fmt::Display for BadAnnouncement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the announcement does not decode"),
            Self::Capabilities(n) => write!(f, "an agent has 1 to {MAX_CAPABILITIES} capabilities, not {n}"),
            Self::Text(field) => write!(
                f,
                "{field} is longer than {MAX_TEXT} bytes, or holds control characters"
            ),
            Self::TooLong(len) => write!(
                f,
                "the announcement has {len} bytes, at most {MAX_PAYLOAD} are allowed"
            ),
        }
    }
}

impl std::error::Error for BadAnnouncement {}

/// What an agent signs to agree that `host` runs it.
#[must_use]
pub fn hosting_message(collective: &[u8; 32], agent: &[u8; 32], host: &HostId, since: u64) -> Vec<u8> {
    let mut bytes = b"pandacore/hosting/v1".to_vec();
    bytes.extend_from_slice(collective);
    bytes.extend_from_slice(agent);
    bytes.extend_from_slice(&host.0);
    bytes.extend_from_slice(&since.to_le_bytes());
    bytes
}

impl<'a> Announcement<'a> {
    /// Reads a payload; [`Self::check`] is not applied.
    ///
    /// # Errors
    /// [`BadAnnouncement::Malformed`].
    pub fn read(payload: &'a [u8]) -> Result<Self, BadAnnouncement> {
        let (read, tail): (Self, _) =
            postcard::take_from_bytes(payload).map_err(|_| BadAnnouncement::Malformed)?;
        // Later minor versions may append more fields: what follows the ones that are known is ignored.
        let subscription_text = postcard::take_from_bytes(tail).map_or("", |(text, _)| text);
        Ok(Self {
            subscription_text,
            ..read
        })
    }

    /// The last second of validity that a payload states; 0 where there is none.
    pub(crate) fn end_of(payload: &[u8]) -> u64 {
        // The first three fields.
        postcard::take_from_bytes::<(u64, Sig, u64)>(payload).map_or(0, |((_, _, end), _)| end)
    }

    /// Names of its capabilities; a malformed one ends them.
    pub fn capabilities(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        Items::<&'a str>::new(self.packed)
            .map_while(Result::ok)
            .take(MAX_CAPABILITIES)
    }

    /// Checks what an own announcement must keep.
    ///
    /// # Errors
    /// [`BadAnnouncement`].
    pub fn check(&self) -> Result<(), BadAnnouncement> {
        let count = Items::<&str>::new(self.packed).count();
        if !(1..=MAX_CAPABILITIES).contains(&count) {
            return Err(BadAnnouncement::Capabilities(count));
        }
        for (field, text) in [
            ("name", self.name),
            ("description", self.description),
            ("endpoint", self.endpoint),
            ("subscription", self.subscription_text),
            (
                "embedding model",
                self.subscription.map_or("", |stated| stated.model),
            ),
        ] {
            if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
                return Err(BadAnnouncement::Text(field));
            }
        }
        Ok(())
    }

    /// The payload of an announcement with these capabilities, checked.
    ///
    /// # Errors
    /// [`BadAnnouncement`].
    pub fn encode<'c>(
        self,
        capabilities: impl IntoIterator<Item = &'c str>,
    ) -> Result<Vec<u8>, BadAnnouncement> {
        let mut names = Vec::new();
        for name in capabilities {
            names = postcard::to_extend(name, names).expect("a vector takes any text");
        }
        let body = Announcement {
            packed: &names,
            ..self
        };
        body.check()?;
        let mut bytes = postcard::to_extend(&body, Vec::new()).expect("a vector takes any announcement");
        if !body.subscription_text.is_empty() {
            bytes = postcard::to_extend(body.subscription_text, bytes).expect("a vector takes any text");
        }
        if bytes.len() > MAX_PAYLOAD {
            return Err(BadAnnouncement::TooLong(bytes.len()));
        }
        Ok(bytes)
    }

    /// An announcement without contents, to be filled in.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            since: 1,
            proof: Sig([[0; 32]; 2]),
            not_after: 0,
            load: 0,
            concurrency: 1,
            cost: 0,
            name: "",
            description: "",
            endpoint: "",
            packed: &[],
            subscription: None,
            certificates: &[],
            subscription_text: "",
        }
    }

    /// Whether the agent agreed to be run by `host`.
    #[must_use]
    pub fn agreed(&self, collective: &[u8; 32], agent: &[u8; 32], host: &HostId) -> bool {
        let message = hosting_message(collective, agent, host, self.since);
        AgentId(*agent).verify(&message, &self.proof.bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use pandacore_trust::KeyPair;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_announcement_reads_back() {
        let codes = [1, 255, 3];
        let full = Announcement {
            name: "reader",
            endpoint: "127.0.0.1:7000",
            subscription: Some(Subscription {
                model: "hash-3",
                scale: 0.5,
                codes: &codes,
            }),
            subscription_text: "books and papers",
            ..Announcement::empty()
        };
        let payload = full.encode(["read.text", "write.text"]).unwrap();
        let back = Announcement::read(&payload).unwrap();
        assert_eq!(
            back.capabilities().collect::<Vec<_>>(),
            ["read.text", "write.text"]
        );
        assert_eq!(
            (
                back.name,
                back.endpoint,
                back.subscription,
                back.subscription_text
            ),
            (
                full.name,
                full.endpoint,
                full.subscription,
                full.subscription_text
            )
        );
    }

    #[test]
    fn fields_of_other_versions_do_no_harm() {
        let stated = Announcement {
            name: "reader",
            ..Announcement::empty()
        };
        let earlier = stated.encode(["read.text"]).unwrap();
        assert_eq!(Announcement::read(&earlier).unwrap().subscription_text, "");
        let text = "books";
        let mut later = Announcement {
            subscription_text: text,
            ..stated
        }
        .encode(["read.text"])
        .unwrap();
        assert_eq!(later[..earlier.len()], earlier);
        later.extend([7, 255, 255]);
        let back = Announcement::read(&later).unwrap();
        assert_eq!((back.name, back.subscription_text), ("reader", text));
        let mut torn = earlier;
        torn.extend([200, 1, b'x']);
        assert_eq!(Announcement::read(&torn).unwrap().subscription_text, "");
    }

    #[test]
    fn limits_are_checked_when_it_is_made() {
        let text = "x".repeat(600);
        let bad = |a: Announcement<'_>| a.encode(["a"]).unwrap_err();
        assert_eq!(
            bad(Announcement {
                name: &text,
                ..Announcement::empty()
            }),
            BadAnnouncement::Text("name")
        );
        assert_eq!(
            bad(Announcement {
                name: "a\nb",
                ..Announcement::empty()
            }),
            BadAnnouncement::Text("name")
        );
        assert_eq!(
            Announcement::empty().encode([]),
            Err(BadAnnouncement::Capabilities(0))
        );
        assert_eq!(
            Announcement::empty().encode(vec!["a"; 65]),
            Err(BadAnnouncement::Capabilities(65))
        );
        let long = "x".repeat(500);
        let two = Announcement {
            name: &long,
            description: &long,
            endpoint: &long,
            ..Announcement::empty()
        };
        assert!(matches!(bad(two), BadAnnouncement::TooLong(n) if n > MAX_PAYLOAD));
    }

    #[test]
    fn only_the_agent_can_agree_and_only_to_this_host() {
        let agent = KeyPair::from_seed(&[4; 32]);
        let (id, host, home) = (agent.id().0, HostId([7; 32]), [1; 32]);
        let proof = Sig::new(agent.sign(&hosting_message(&home, &id, &host, 5)));
        let stated = Announcement {
            since: 5,
            proof,
            ..Announcement::empty()
        };
        assert!(stated.agreed(&home, &id, &host));
        assert!(!stated.agreed(&home, &id, &HostId([8; 32])));
        assert!(!stated.agreed(&[2; 32], &id, &host));
        assert!(!Announcement { since: 6, ..stated }.agreed(&home, &id, &host));
    }

    proptest! {
        #[test]
        fn random_payloads_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(read) = Announcement::read(&bytes) {
                let _ = read.capabilities().count();
                let _ = read.check();
            }
        }
    }
}
