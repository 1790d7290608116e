"""What a run folder is: config, facts, metrics, scores, encodings, results. Needs no torch."""
