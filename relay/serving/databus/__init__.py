"""The Databus protocol over HTTP."""
