"""ddlp."""
