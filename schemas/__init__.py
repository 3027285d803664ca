"""What goes over the wire and onto disk. Pure: no sockets, files, threads or clocks."""
