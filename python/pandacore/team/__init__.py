"""The team plane: agents served over gRPC, and the runtime that assembles and drives a team per task."""
