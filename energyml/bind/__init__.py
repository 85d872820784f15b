"""Binding: vocabularies, sizes and parameters; from here on there are tensors."""
