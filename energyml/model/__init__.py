"""Names, types with named axes, and checking."""
