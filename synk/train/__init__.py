"""Training: functions that make steps, scaled losses."""
