"""What the tasks on plain text share: reading it, what is trained, loss and scores."""
