"""Stands for the Spark pipeline: says what it was told, and ends badly, or waits for its end."""

import signal
import sys
from pathlib import Path

url, folder = sys.argv[1:]
print(f"reads {url}", flush=True)
lives = Path(folder) / "lives"
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
if lives.read_text() == "x":
    sys.exit(3)
signal.pause()
