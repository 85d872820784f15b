"""Inference by enumeration: the oracle for every other backend."""
