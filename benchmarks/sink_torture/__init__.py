"""`databus sink run` is killed, and so is its target: does the target end as the source?"""
