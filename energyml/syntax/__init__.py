"""Text to tree, and tree to text."""
