"""A test kit for users: model servers that answer from a script or misbehave, and a simulated network."""

from pandacore.testing.chaos import ChaosModel, Fault
from pandacore.testing.scripted import Rule, ScriptedModel
from pandacore.testing.sim import SimFailure, SimNetwork, SimReport, explore

__all__ = ["ChaosModel", "Fault", "Rule", "ScriptedModel", "SimFailure", "SimNetwork", "SimReport", "explore"]
