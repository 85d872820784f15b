"""Gradient descent on relaxed labels."""
