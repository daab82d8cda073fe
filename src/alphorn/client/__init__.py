"""The Python API: one protocol core (core.py, outbox.py, inbox.py) below a blocking and an asyncio shell."""
