"""RunPod's serverless endpoints: each model is an endpoint."""
