"""Exchange with other libraries and file formats."""

from __future__ import annotations

from energyml.interop.imported import ImportedModel
from energyml.interop.libdai import read_fg
from energyml.interop.numbers import ModelFileError
from energyml.interop.uai import read_evid, read_uai
from energyml.interop.writing import write_uai

__all__ = ["ImportedModel", "ModelFileError", "read_evid", "read_fg", "read_uai", "write_uai"]
