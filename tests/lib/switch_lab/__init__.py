"""Packet tests of switches: frames, what the reference answers to them, and the switches under test."""
