"""Other readers of MySQL's binlog beside ours: `python -m benchmarks.peers [NAME]...`.

One MySQL, one stretch of its log written once, every reader from the same place to the same
row. Each reader is a program of its own in `programs/`, written for its library's fastest
documented way that decodes every row; it prints one JSON line with its rows, seconds and CPU
seconds from its first row to its last, so that start-up is left out of all alike; for those in
Java also the first quarter of the rows, in which the virtual machine compiles. A slow reader gets
fewer rows, from the same begin. Our own readers (`ours`) are programs under the same rule: a relay
and its client count together, from the relay's first row on. Memory is what all processes of a
reader have allocated at most (`peak`).

The programs are built here with the tool chains that are present (Go, Cargo, Maven with a
JDK); they fetch their libraries from the public registries of these. A reader that cannot be
built is named in the output with the reason.
"""
