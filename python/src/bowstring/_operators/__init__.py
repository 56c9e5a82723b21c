"""Operators in a process beside this one, for streams and random access. It imports `_rows` and `_transport`."""
