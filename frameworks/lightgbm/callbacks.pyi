import threading

current: threading.local

def addresses(throw_runtime_error: int) -> tuple[int, int]: ...
