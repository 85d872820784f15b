"""The lifted factor graph: variables, factor templates and index sets."""
