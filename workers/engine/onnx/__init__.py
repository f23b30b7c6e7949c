"""The runners `onnx` and `rapidocr`: networks in ONNX files, computed by onnxruntime."""
