"""What draws tell: traces, convergence, standard errors."""
