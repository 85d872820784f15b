"""Gaussian fields against their peers: see README.md."""
