"""The events of a window, as an application gets them."""
