"""Figures and pages made from what was measured; nothing here needs torch."""
