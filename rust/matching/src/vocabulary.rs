//! Capability names behind dense handles.
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::error::RegistryError;
use crate::rng::mix;

/// The longest capability name, in bytes.
pub const MAX_NAME: usize = 128;
/// Marks names of tags inside the vocabulary; a capability name cannot start with it.
pub(crate) const TAG: char = '#';

/// A fixed hasher: names come from the local vocabulary, and a random one would break "same seed, same result".
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            self.0 = mix(self.0 ^ 0x9E37_79B9_7F4A_7C15, word ^ 0xe703_7ed1_a0b4_28db);
        }
        let mut tail = [0u8; 8];
        let rest = chunks.remainder();
        tail[..rest.len()].copy_from_slice(rest);
        let word = u64::from_le_bytes(tail) ^ ((rest.len() as u64) << 56);
        self.0 = mix(self.0 ^ 0xa076_1d64_78bd_642f, word ^ 0xe703_7ed1_a0b4_28db);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) type FixedState = BuildHasherDefault<NameHasher>;

/// Interned names. `search.web` knows its parent `search`: who can do the first satisfies the second.
#[derive(Debug, Default, Clone)]
pub struct Vocabulary {
    by_name: HashMap<Box<str>, u32, FixedState>,
    names: Vec<Box<str>>,
    parents: Vec<u32>,
}

/// No capability.
pub(crate) const NONE: u32 = u32::MAX;

impl Vocabulary {
    /// Number of names, tags and implied parents included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no name was interned yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The handle of a known name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The name of a handle.
    #[must_use]
    pub fn name(&self, handle: u32) -> Option<&str> {
        self.names.get(handle as usize).map(AsRef::as_ref)
    }

    /// All names in the order of their handles.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// Whether any capability has a parent.
    pub(crate) fn has_parents(&self) -> bool {
        self.parents.iter().any(|&p| p != NONE)
    }

    pub(crate) fn parent(&self, handle: u32) -> u32 {
        self.parents[handle as usize]
    }

    /// Interns a capability name and its parents.
    ///
    /// # Errors
    /// [`RegistryError::InvalidName`] when the name breaks the rule; nothing is interned then.
    pub(crate) fn intern(&mut self, name: &str) -> Result<u32, RegistryError> {
        if let Some(handle) = self.find(name) {
            return Ok(handle);
        }
        check_name(name)?;
        Ok(self.add(name))
    }

    fn add(&mut self, name: &str) -> u32 {
        let parent = match name.rfind('.') {
            Some(dot) if !name.starts_with(TAG) => {
                self.find(&name[..dot]).unwrap_or_else(|| self.add(&name[..dot]))
            }
            _ => NONE,
        };
        let handle = self.names.len() as u32;
        self.by_name.insert(name.into(), handle);
        self.names.push(name.into());
        self.parents.push(parent);
        handle
    }
}

/// The naming rule: 1 to 128 bytes, no white space but inner spaces, no control characters, no empty part
/// between dots. A leading `#` marks a tag, which has no parts.
pub(crate) fn check_name(name: &str) -> Result<(), RegistryError> {
    let refuse = |why| {
        Err(RegistryError::InvalidName {
            name: name.chars().take(80).collect(),
            why,
        })
    };
    let (body, tag) = match name.strip_prefix(TAG) {
        Some(rest) => (rest, true),
        None => (name, false),
    };
    if body.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > MAX_NAME {
        return refuse("it is longer than 128 bytes");
    }
    // Inner spaces are allowed ("summarise text"); at the edge of a part they could not be seen.
    if body
        .chars()
        .any(|c| (c.is_whitespace() && c != ' ') || c.is_control() || c == TAG)
    {
        return refuse("it has white space other than spaces, a control character or a '#'");
    }
    if !tag
        && body
            .split('.')
            .any(|part| part.trim().len() != part.len() || part.is_empty())
    {
        return refuse("a part between its dots is empty, or begins or ends with a space");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interning_a_dotted_name_interns_its_parents() {
        let mut v = Vocabulary::default();
        let web = v.intern("search.web").unwrap();
        let search = v.find("search").unwrap();
        assert_eq!(v.parent(web), search);
        assert_eq!(v.parent(search), NONE);
        assert_eq!(v.intern("search.web").unwrap(), web);
        assert_eq!(v.len(), 2);
    }

    #[test]
    fn malformed_names_are_refused_and_leave_nothing_behind() {
        let mut v = Vocabulary::default();
        for bad in [
            "",
            " ",
            " a",
            "a .b",
            "a\tb",
            "a..b",
            ".a",
            "a.",
            "#",
            "a#b",
            "a\n",
            &"x".repeat(129),
        ] {
            assert!(v.intern(bad).is_err(), "{bad:?}");
        }
        assert!(v.is_empty());
        assert!(v.intern("#lang:de.at").is_ok());
        assert!(v.intern("summarise text").is_ok());
        assert_eq!(v.len(), 2);
    }
}
