"""Translates further protocols to chat requests, and chat answers back to them."""
