"""What a person sees of a run: pages drawn from a status, lines for a log, the summary at the end."""
