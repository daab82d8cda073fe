"""One file per role: `node/x.py` runs the room `x/` and performs its outputs in one place."""
