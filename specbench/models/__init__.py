"""Decoders, their caches, and everything that turns a model on disk into one that runs."""
