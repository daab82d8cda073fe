"""Measures the message cluster with real processes: `works` names the works, `measure` runs one of them."""
