"""The classes of the syntax tree, by kind; `p4.model.compiler.syntax` has them all."""
