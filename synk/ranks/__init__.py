"""Ranks: the session, a rank's context, its replicas of functions and variables."""
