"""Mean field and belief propagation."""
