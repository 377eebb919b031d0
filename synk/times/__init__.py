"""Where the time goes on a rank: phases of calls, events of a trace."""
