"""The wire, version 1: what a request and a reply are in bytes. See `docs/protocol.md`."""
