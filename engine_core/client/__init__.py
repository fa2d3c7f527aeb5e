"""An asyncio client of one engine core, as API processes use it."""
