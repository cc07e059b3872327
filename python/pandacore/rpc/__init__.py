"""gRPC bindings: generated code in ``v1``, and the mapping between typed errors and the wire."""
