"""What `scripts/bench.py` measures: one module a question, all on one stage, all written to one JSON file."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUIET = 0.3  # cores of foreign load from which a block is marked noisy
