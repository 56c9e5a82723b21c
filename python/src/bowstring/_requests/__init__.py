"""What a process requests: the request, the rank and mesh of the process, and the state of its job.

It imports `_transport`.
"""
