"""Names that `import` finds when synk has been imported, and nobody else has them."""
