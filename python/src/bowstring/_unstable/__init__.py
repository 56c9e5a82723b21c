"""What the package uses of Ray, Polars and torch that these do not document. It imports no other group.

A new version may change any of it. `tests/python/test_unstable.py` compares each with the installed version.
"""
