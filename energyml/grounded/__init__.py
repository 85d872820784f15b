"""Factors, schedules and local search over one batch, as tensors."""
