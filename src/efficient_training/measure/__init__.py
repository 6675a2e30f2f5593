"""Instruments: memory by phase and component, and what autograd saves."""
