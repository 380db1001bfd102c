"""The aggregators that packet tests run on."""
