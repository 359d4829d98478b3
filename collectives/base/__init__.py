"""The ground of the hub: settings, the lines of callers, the words of errors, and whether a group is open."""
