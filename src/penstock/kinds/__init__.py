"""Kinds of models that ship as functions: one file each, named by an entry point of `penstock.functions`."""
