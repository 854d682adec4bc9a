"""Identification of a robot's parameters from recorded motion.

payload  the payload of a link, from recordings, from poses at rest, or while the robot moves
"""

from dyn_service.identification.payload import PayloadEstimate, PayloadEstimator, identify_payload

__all__ = ["PayloadEstimate", "PayloadEstimator", "identify_payload"]
