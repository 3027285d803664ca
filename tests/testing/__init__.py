"""What applications test themselves with."""
