"""One module a figure: `select(frozen)` gives the rows to draw, `build(frame)` draws them (no torch)."""
