"""From a user's graph to what each rank compiles and runs."""
