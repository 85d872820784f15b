"""placeholder"""
from energyml.errors.kind import Kind
KINDS: tuple[Kind, ...] = ()
