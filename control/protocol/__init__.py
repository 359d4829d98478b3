"""What ranks and the coordinator say to each other, and what each does then: no sockets, threads or clocks."""
