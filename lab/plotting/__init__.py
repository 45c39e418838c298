"""Pictures: one look for all of them."""
