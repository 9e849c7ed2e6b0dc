"""specbench: one decode loop for every speculative-decoding method, measured fairly."""

__version__ = "0.1.0"
