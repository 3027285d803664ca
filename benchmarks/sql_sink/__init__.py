"""How fast the sink `sql` writes, beside the best statements by hand on the same driver."""
