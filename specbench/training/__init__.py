"""Parts that are trained: small drafts and rules that stop them."""
