"""One `Model`: trained heads with their encoder, which predict; packages, the Hub, ONNX and cards."""
