"""The only door to Transformers: everything that touches it, or torch's internals on its behalf, is in this package."""
