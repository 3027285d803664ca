"""A sink whose target hangs, beside two that write."""
