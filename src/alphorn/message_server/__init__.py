"""The message server: events of the cluster, and acknowledged messages between its work processes. Pure."""
