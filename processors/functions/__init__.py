"""The processor `function`: decodes what a user's function takes, and encodes what it answers."""
