"""THC's two schemes: servers add codes (adding), ranks decode them (decoding). Shares of tensors and random keys."""
