"""What every test may rely on, however the test run itself was started."""

import signal

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
