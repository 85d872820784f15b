"""Beam search and training through it, measured."""
