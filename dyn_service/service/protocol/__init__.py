"""The wire protocol, version 1: requests and replies as bytes. `docs/protocol.md` specifies it."""
