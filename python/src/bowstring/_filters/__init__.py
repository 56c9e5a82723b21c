"""Conditions of SQL, Polars and Ray as `where` expressions of a server. It imports `_unstable`."""
