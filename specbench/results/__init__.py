"""What a run leaves on disk: schemas, the crash-safe store, and loaders that give data frames (no torch)."""
