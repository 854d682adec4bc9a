"""The wire protocol, version 1: requests and replies as bytes. `docs/protocol.md` specifies it.

arrays     arrays in a message
curve      CURVE, the encrypted mechanism of ZMTP: its boxes and nonces
endpoints  forms of endpoints; the user at the other end of an ipc connection
inputs     inputs of queries: wrenches, contacts, payloads, overlays, names
keys       CURVE key files
limits     limits of messages and servers (applied to a request's cost: `server/answering/bounds.py`), bounded decoding;
           default endpoint, timeouts and retries
messages   requests, replies, notices and cancels; queries about the server and the role that each requires
zmtp       ZMTP 3 for either end of a connection, without I/O: states, frames, commands
"""
