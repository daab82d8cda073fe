"""The blocking API: one I/O thread for each connection, and the program's own threads."""
