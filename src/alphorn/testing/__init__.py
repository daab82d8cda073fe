"""The simulator: whole groups in one thread under virtual time, from one seed. docs/simulation.md explains it.

Shipped with the package so that users can test what they build on the log with the same faults. Nothing here uses a
clock, a socket, a file or a thread; `campaign` alone starts processes, to use every core.
"""
