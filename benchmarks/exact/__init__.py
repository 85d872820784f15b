"""Exact inference against its peers: speed, memory, accuracy and distance from the machine's limit."""
