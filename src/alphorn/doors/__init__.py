"""Doors: how clients speak, bytes to values and back (pure)."""
