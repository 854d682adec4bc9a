"""Which clients an encrypted endpoint admits: the server's keys and the list of allowed ones.

A client that has proved that it owns its key is checked against the list, which is read at that moment. A key that is
not allowed gets the ERROR 400, after which ZeroMQ does not try again. While the list is invalid the connection is just
closed, so that clients come again.
"""

from __future__ import annotations

import logging

from dyn_service.service.protocol.curve import CurveServer
from dyn_service.service.protocol.keys import Keys, z85_encode
from dyn_service.service.protocol.zmtp import ProtocolError, refusal
from dyn_service.service.server.administration.access import AccessList
from dyn_service.service.server.transport.quotas import RateLimitedLog

_LOG = logging.getLogger(__name__)


class Admission:
    """The admission to encrypted endpoints. refused: number of connections refused. log: reasons of refusals."""

    def __init__(self, keys: Keys, access_list: AccessList) -> None:
        self.access_list = access_list
        self.refused = 0
        self.log = RateLimitedLog(_LOG, logging.WARNING)
        self._pair = keys.pair

    def mechanism(self) -> CurveServer:
        """Returns the mechanism of a new connection."""
        return CurveServer(self._pair, self._admit)

    def _admit(self, key: bytes) -> None:
        """Raises `ProtocolError` unless the list, read again, allows this public key."""
        public = z85_encode(key)
        self.access_list.check(at_once=True)
        if self.access_list.caller(public) is not None:
            return
        self.refused += 1
        name, cause = self.access_list.name_of(public), self.access_list.refusal(public)
        self.log.log("%s was refused (refusal number %d): %s", name, self.refused, cause)
        if self.access_list.fault is not None:
            raise ProtocolError("no key is allowed now")
        raise refusal("its key is not allowed", "400")
