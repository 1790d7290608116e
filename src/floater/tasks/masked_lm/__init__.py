"""Masked language modelling: pretrain the dynamics alone, on any text."""
