"""The settings of the daemon: flags, configuration file, defaults, API keys and certificates."""
