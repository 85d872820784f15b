"""Approximate inference: speed, overhead, and the tables of Tu & Gimpel 2019."""
