"""Nouns shared by every room: ids, limits and errors. Imports nothing of alphorn."""
