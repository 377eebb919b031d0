"""The compiler: from a user's graph to the stages that ranks compile and run."""
