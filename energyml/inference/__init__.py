"""Tools of backends that answer queries: costs, expectations, precision, traces, sessions over factor graphs."""
