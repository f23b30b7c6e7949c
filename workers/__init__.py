"""Workers: claim jobs, fetch, prepare, infer, finish, store, complete."""
