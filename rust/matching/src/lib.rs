//! Registry, capability pools and team assembly.
