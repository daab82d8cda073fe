"""The only room with asyncio, sockets, files and clocks: it does what the pure rooms decided."""
