"""The pages, one file each; `show` draws it. Not called `pages`: Streamlit would serve each file of that by itself."""
