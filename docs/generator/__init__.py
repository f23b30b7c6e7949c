"""What the documentation's pages hold that is made from the code, each time the site is built."""
