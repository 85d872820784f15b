"""Integer linear programming."""
