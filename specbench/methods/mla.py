"""Speculative sampling with a draft whose attention was converted to multi-head latent attention.

The draft's cache holds latents, and a step of one token reads them as they are (`specbench.models.latent`); all else
is what any draft model does. Who converts it, and when, is `specbench.runner.converted`.
"""

from __future__ import annotations

from specbench.methods.sps import SpeculativeSampling


class LatentDraft(SpeculativeSampling):
    """A draft of its own name: what is trained for it serves no other."""
