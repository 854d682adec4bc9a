"""Transports of a server: endpoints, connections, and the quota that they share.

endpoints    addresses, socket files, and the interface `Transport`
plain        tcp and ipc without encryption; inproc
zmtp         decoder of ZMTP 3, used by `plain`; no sockets
encrypted    tcp and ipc with CURVE and a list of allowed keys
quotas       limits over all connections
"""
