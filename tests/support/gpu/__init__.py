"""GPU arrays without a GPU: stand-ins for the driver and the compiler, and what ranks run over them."""
