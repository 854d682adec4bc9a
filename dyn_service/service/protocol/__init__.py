"""The wire protocol, version 1: requests and replies as bytes. `docs/protocol.md` specifies it.

- `messages.py`: queries about the server and its robots, with the role that each requires
- `arrays.py`: arrays in a message
- `limits.py`: default endpoint, timeouts and retries
- `inputs.py`: inputs of queries: wrenches, contacts, payloads, overlays, names
- `keys.py`: CURVE key files
- `limits.py`: limits of messages and servers, bounded decoding
- `messages.py`: requests, replies, notices and cancels
- `sockets.py`: ZeroMQ helpers that clients, servers and nodes share
"""
