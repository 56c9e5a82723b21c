"""Requests of a process: the request, the rank and mesh of the process, and the state of its job."""
