"""A web page for people who would rather look: `torchwise dashboard`.

Streamlit draws the shell (navigation, choices, forms) and asks again while a search runs; what is shown of records are
the pages of `torchwise.report`, whose every word is escaped, and which Streamlit sanitises once more. Nothing that the
store holds is run, or read as Markdown.
"""
