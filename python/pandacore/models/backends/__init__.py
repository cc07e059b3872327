"""Backends of the model server: where an answer really comes from."""
