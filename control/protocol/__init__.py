"""The talk between ranks and the coordinator, and what each does then: no sockets, threads or clocks."""
