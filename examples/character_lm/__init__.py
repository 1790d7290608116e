"""A complete task in one folder: a character language model. `docs/extend.md` walks through it."""
