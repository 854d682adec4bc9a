"""Clients. They need numpy, pyzmq, msgpack and msgspec only.

sync           `Client`, with its robots
aio            `AsyncClient`, with its robots
async_queries  the awaited methods of robots
connection     settings, epochs and errors of both clients
flows          requests and replies of all calls, without sockets
retries        retry policy; time limits
channels       transports; refusals by servers with keys
"""
