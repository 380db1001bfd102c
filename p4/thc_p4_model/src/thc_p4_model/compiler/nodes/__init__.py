"""The classes of the syntax tree, by kind; `thc_p4_model.compiler.syntax` has them all."""
