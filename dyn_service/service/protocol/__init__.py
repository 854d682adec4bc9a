"""The wire protocol, version 1: requests and replies as bytes. `docs/protocol.md` specifies it.

- `arrays.py`: arrays in a message
- `inputs.py`: inputs of queries: wrenches, contacts, payloads, overlays, names
- `keys.py`: CURVE key files
- `limits.py`: limits of messages and servers, bounded decoding; default endpoint, timeouts and retries
- `messages.py`: requests, replies, notices and cancels; queries about the server and the role that each requires
- `sockets.py`: ZeroMQ helpers that clients, servers and nodes share
"""
