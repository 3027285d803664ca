"""The parts of the page that tell what is wrong, and the figures of tables and pairs."""
