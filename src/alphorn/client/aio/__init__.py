"""The asyncio API: the same core, driven by the program's event loop."""
