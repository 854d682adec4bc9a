"""Clients: the same questions as in process, over a socket. They need numpy, pyzmq, msgpack and msgspec, no more."""
