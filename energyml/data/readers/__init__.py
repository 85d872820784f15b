"""The readers: one file a format.  Each turns files into examples; none knows the spec."""
