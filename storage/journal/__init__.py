"""The journal: flows over the job store and the object store, which make an outcome the commit point."""
