"""Hard and relaxed beam search."""
