"""The tests of databus."""

# How long tests wait for what other threads, processes and servers do. What comes is taken at
# once; what does not come on a machine that is busy with other things has not come at all.
PATIENCE_S = 120.0
