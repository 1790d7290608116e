"""Causal language modelling: train the dynamics on any text, the pretrained model frozen."""
