"""The words between workers and servers, and the links on which they say them."""
