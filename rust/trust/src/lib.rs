//! Keys and identities.
