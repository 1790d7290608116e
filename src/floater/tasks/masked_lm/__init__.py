"""Masked language modelling: pretrains the law of motion alone, on any text."""
