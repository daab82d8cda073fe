"""Every test of this folder may use a broker, and `connect` of both shells."""

from tests.client.shells import broker, connect

__all__ = ["broker", "connect"]
