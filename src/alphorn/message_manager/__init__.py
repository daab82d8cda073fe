"""S1: the Message Manager. An engine applies commands to destinations; the primary dispatches to consumers (pure)."""
