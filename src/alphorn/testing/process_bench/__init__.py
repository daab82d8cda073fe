"""Measures messages between work processes: `measure` starts everything, `parts` is what its child processes do."""
