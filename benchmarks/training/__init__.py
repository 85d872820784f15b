"""How fast training is: one epoch of the OCR chain, where its time goes, and the same network with pytorch-crf."""
