"""What a rank is and holds: its session, functions, variables, and their replicas."""
