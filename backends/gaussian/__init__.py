"""Gaussian fields."""
