"""The machine: devices, phase timers, locks, threads, load, memory and what a forward pass costs."""
