"""The definitions of tables over time, and the statements that change them."""
