"""The task `documents`: classify documents by their sentences, at times by sentence lengths."""
