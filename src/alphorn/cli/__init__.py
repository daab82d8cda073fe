"""The `alphorn` command: reads arguments, calls the rooms below, prints for people and programs."""
