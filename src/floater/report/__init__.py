"""Reports and figures of what was measured. Nothing here needs torch."""
