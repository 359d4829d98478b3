"""Where state lives: servers hold the parameters, workers push changes and pull values, with bounded staleness."""
