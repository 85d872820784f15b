"""Inference networks."""
