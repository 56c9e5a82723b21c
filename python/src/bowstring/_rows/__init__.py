"""Rows of a dataset: which ones are chosen, uploads, and conversions between Arrow and NumPy.

It imports `_requests` and `_transport`.
"""
