"""Connections to a server: calls over HTTP/2, shared memory, TLS and forks. It imports `_local` alone."""
