"""Undocumented parts of Ray, Polars and torch that the package uses. It imports no other group.

A new version may change any of it. `tests/python/test_unstable.py` compares each with the installed version.
"""
