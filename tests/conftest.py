"""What every test may rely on, however the test run itself was started."""

import os
import signal

# A shell that starts its jobs in the background hands SIGINT on as ignored, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What somebody has measured on this machine must not decide what a test runs.
os.environ["HOCKET_TUNING"] = "off"
