"""The async client. `penstock.client.synchronous` is generated from it by `make client`."""
