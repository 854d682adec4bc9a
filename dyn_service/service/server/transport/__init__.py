"""Transport of a server: endpoints, connections, and the quota that they share.

endpoints    addresses, listening sockets and their files
connections  connections, messages and replies; protocol.zmtp reads and writes their bytes
admission    which clients encrypted endpoints admit
quotas       limits over all connections
"""
