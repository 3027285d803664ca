"""`python -m benchmarks.client_fuzz`: damaged streams and pages give errors or the same rows.

Contents: making (sound windows and pages with every type and kind of event), reading (the same
bytes through the compiled readers and through Python's), run (rounds, the command).
`benchmarks.capture_fuzz` damages the bytes, and builds the compiled modules with a sanitizer.
"""
