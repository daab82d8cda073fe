"""Queues and topics: pure machines that apply a channel's commands and say what must be done."""
