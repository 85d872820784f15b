"""Scaling matters (Shevchenko & Osokin 2019): objectives and procedures on OCR, chunking and horses."""
