"""What bodies may take before they are read and decoded: bytes, and turns of the event loop."""
