"""The same API as `alphorn` itself, with `await` and `async with`."""

from alphorn.client.aio.connection import Connection, connect
from alphorn.client.aio.consumer import Browser, Consumer
from alphorn.client.aio.producer import Producer, Receipt
from alphorn.client.aio.session import Session
from alphorn.client.message import Message

__all__ = ["Browser", "Connection", "Consumer", "Message", "Producer", "Receipt", "Session", "connect"]
