"""A client and a relay that behave like LinkedIn's own, and tests of ours against them.

The stand-ins import nothing of `databus`: they are written from the wire protocol's description
and from recorded bytes, so that a mistake of ours is not made twice.
"""
