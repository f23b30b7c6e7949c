"""A service's models as tools of the Model Context Protocol, for agents (`penstock mcp`).

answers     a model as a tool, a job as the answer of one and as a task (pure)
tools       the tools beside the models: submit, wait, cancel, upload, usage
server      the protocol's requests, each answered by the service with the key of its sender
"""
