"""Processes that serve readers: `python -m benchmarks.serving_processes [--short] [--json FILE]`.

A relay captures generated transactions all the time, while eight readers read its ring at full
speed, through one serving process and through two. Slices of time without readers and with them
alternate, in one run of the same relay. A busy machine makes every program dearer, as cores and
caches are shared. So there are slices in which the same readers read another relay beside it: what
a captured row costs more when they read this one is what serving costs capture. And there are
slices in which as many processes only copy memory. What they cost capture, no program of ours does.

What two serving processes bring depends on the cores there are: the capturing process, the serving
ones and the readers, which are two processes, all want one. The cost of capture does not: it is its
CPU time for each row that it captures, and must be the same whether anybody reads or not.
"""

from benchmarks.serving_processes.run import figures, main

__all__ = ["figures", "main"]
