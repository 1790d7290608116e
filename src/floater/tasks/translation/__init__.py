"""Neural machine translation by the paper's protocol."""
