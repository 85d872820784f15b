"""Exchange with other libraries and file formats."""
