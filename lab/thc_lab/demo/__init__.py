"""`thc demo`: a small GPT that several workers train over slow links, with fp32, bf16 and THC."""
