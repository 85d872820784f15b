"""Structure recognition, cost, and the choice of a method with its reasons."""
