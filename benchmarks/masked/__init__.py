"""Masked language models as energies: chapter 6 of Goyal's thesis (2021)."""
