"""Whether training can be trusted with long runs: killed at random moments, it ends as if it had not been."""
