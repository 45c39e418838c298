"""Models: each exposes ``attention_layers()``, ``rules()`` and ``no_weight_decay()``."""
