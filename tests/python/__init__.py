"""Tests of the Python package. A package itself, so that its modules may be named as those of tests/ are."""
