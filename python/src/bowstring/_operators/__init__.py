"""Operators in a process beside this one, for streams and random access. It imports `_local` and `_rows`."""
