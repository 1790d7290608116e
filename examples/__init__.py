"""Examples that docs/extend.md walks through."""
