"""Speed of samplers: site updates, effective draws and masked proposals per second."""
