"""The sync client, generated from `penstock.client.asynchronous` by `make client`: change that one."""
