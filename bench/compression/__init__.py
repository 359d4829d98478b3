"""Do fewer bits pay, and what do they cost? One program for each answer; docs/compression.md has their tables."""
