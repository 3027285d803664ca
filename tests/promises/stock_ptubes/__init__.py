"""The stock client of Ptubes, as it is on Maven Central, reads from a relay."""
