"""The columns of an Avro row schema."""
