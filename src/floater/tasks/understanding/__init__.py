"""Language understanding with pretrained Hugging Face encoders: what its tasks share."""
