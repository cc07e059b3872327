"""The ``pandacore`` command."""
