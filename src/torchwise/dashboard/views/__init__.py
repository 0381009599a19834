"""The pages, one file each, with a function `show` that draws the page.

The folder must not be named `pages`, as Streamlit would serve each file of such a folder.
"""
