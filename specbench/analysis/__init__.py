"""Every number of a table, derived from the stored records (no torch)."""
