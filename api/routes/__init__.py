"""The routes of the native API, one module per noun."""
