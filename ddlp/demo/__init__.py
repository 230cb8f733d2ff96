"""`ddlp demo`: one epoch of real image files, streamed four ways, and a table of what each took."""
