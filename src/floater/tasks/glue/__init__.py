"""GLUE: eight tasks of one or two sentences."""
