"""Tiny tensors: one thread is fastest, and sums come out the same everywhere."""

import torch

torch.set_num_threads(1)
