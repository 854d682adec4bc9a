"""Clients. They need numpy, msgpack, msgspec and pynacl only.

sync           `Client`, with its robots
aio            `AsyncClient`, with its robots
async_queries  the awaited methods of robots
connection     settings, epochs and errors of both clients
flows          requests and replies of all calls, without sockets
retries        retry policy; time limits
channels       one connection, and how calls that block wait for it
async_channel  how an event loop waits for it
"""
