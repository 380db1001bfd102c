"""Settings of all tests."""

from hypothesis import settings

# Hypothesis fails an example after 0.2 s, unless it knows that it runs on CI: any stall of the machine takes that long.
settings.register_profile("no deadline", settings.default, deadline=None)
settings.load_profile("no deadline")
