"""Event sequences: the type and the time of the next event."""
