"""Parts of the documentation that are generated from the code at each build of the site."""
