"""Conversions are small here: one thread is fastest, and makes sums come out alike everywhere."""

import torch

torch.set_num_threads(1)
