"""Request and response schemas of the native API, one module per noun."""
