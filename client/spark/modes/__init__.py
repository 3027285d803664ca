"""What tables hold besides the rows of the source: versions, deleted rows, each change."""
