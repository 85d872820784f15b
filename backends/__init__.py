"""Inference backends, one folder each, loaded lazily by name."""
