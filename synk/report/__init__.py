"""What synk tells of itself: explanations, timelines."""
