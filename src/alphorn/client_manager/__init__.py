"""S1: the Client Manager. Holds client connections, orders what they want, delivers what is for them (pure)."""
