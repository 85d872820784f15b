"""The catalogue of networks."""
