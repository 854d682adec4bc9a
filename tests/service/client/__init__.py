"""Tests of the blocking and the asyncio client."""
