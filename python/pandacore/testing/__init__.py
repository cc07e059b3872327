"""A test kit for users: real model servers on loopback that answer from a script, or misbehave on purpose."""

from pandacore.testing.scripted import ScriptedModel

__all__ = ["ScriptedModel"]
