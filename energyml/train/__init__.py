"""Training: stages, optimisers, balance and stop rules."""
