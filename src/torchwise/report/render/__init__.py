"""Renderers of documents, one for each output. None of them knows the subject of a document."""
