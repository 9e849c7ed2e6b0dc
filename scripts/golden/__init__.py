"""Checkers of golden data: recorded numbers of the official implementations against this project's public code.

A later method adds one module with one checker and one line in `registry.CHECKERS`.
"""
