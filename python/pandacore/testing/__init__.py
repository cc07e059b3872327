"""A test kit for users: real model servers on loopback that answer from a script, or misbehave on purpose."""

from pandacore.testing.chaos import ChaosModel, Fault
from pandacore.testing.scripted import Rule, ScriptedModel

__all__ = ["ChaosModel", "Fault", "Rule", "ScriptedModel"]
