"""Extractive question answering: SQuAD 1.1, and 2.0 with questions that have no answer."""
