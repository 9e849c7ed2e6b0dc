"""From grouped-query attention to multi-head latent attention: converters, and tuning what they made."""
