"""`python -m benchmarks.adversity`: attacks on running processes, and a judge of the results.

Contents: servers (private databases, made from a template), proxy (between a relay and its
database), writer (transactions that can be told apart), consumer (a process that notes down what
it is given), processes (all of these, made and ended), stage (the verbs in which attacks are
written), monitor (what everybody says of itself meanwhile), judge (rules without I/O: what was seen
in, what was wrong out), attacks (what is done, by section of what was found from outside),
disarming (checks of the product, and how to switch one off), disarmed (a `databus` with one of them
off), run (the command).

The product does not import or know this package.
"""
