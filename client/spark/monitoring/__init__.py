"""What a query says of itself."""
