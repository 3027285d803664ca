"""Tables read beside the binlog, in chunks and in key order."""
