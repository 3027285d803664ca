"""The sink `sql`: copies of tables in databases that SQLAlchemy supports."""
