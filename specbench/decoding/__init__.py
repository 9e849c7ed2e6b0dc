"""The decode loop: draft, verify, commit."""
