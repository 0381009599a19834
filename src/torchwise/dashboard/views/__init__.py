"""The pages, one file each, drawn by their `show`.

The folder is not called `pages`, as Streamlit would serve each file of such a folder.
"""
