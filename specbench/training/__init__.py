"""Parts that are trained: a small draft for any target."""
