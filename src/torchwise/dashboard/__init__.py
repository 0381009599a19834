"""A web page of the store: `torchwise dashboard`.

Streamlit draws the frame (navigation, choices, forms) and refreshes it while a search runs. The records are shown by
the pages of `torchwise.report`, which escape every word, and which Streamlit sanitises again. Contents of the store are
never run, or read as Markdown.
"""
