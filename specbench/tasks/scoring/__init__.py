"""Scores of answers: numbers, summaries, and programs that must pass their tests."""
