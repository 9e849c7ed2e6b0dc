"""The decode loop: a drafter proposes, the target verifies, a controller says when to stop drafting."""
