"""Products of matrices that round equally whatever stands beside a row, and how they are packed."""
