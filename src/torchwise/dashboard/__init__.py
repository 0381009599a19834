"""The dashboard, a web app for the store: `torchwise dashboard`.

Streamlit draws navigation, choices and forms, and refreshes them while a search runs. The pages of `torchwise.report`
show the records. They escape all text, and Streamlit sanitises it again. Contents of the store are never run, or read
as Markdown.
"""
