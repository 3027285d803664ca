"""The torture's short form."""
