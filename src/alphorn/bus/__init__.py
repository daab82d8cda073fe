"""The totally ordered replicated log: pure machines that decide, with no socket, file or clock of their own."""
