"""Embeddings of long documents: which first half belongs to which second half?"""
