"""`hocket tune`: measuring, and where the times are kept."""
