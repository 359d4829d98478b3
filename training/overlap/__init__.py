"""When gradients are sent: behind the computation, the most urgent first, in an order that needs no coordinator."""
