"""One module a method: a drafter for the loop, or an outside reference."""
