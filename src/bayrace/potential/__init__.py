"""The potential that users share, and its file."""
