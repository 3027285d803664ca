"""Tables of databases by SQLAlchemy: names, types, statements, refusals; no Spark, no sinks."""
