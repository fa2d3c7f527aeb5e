"""From text pieces to the choices of `/v1/completions`."""
