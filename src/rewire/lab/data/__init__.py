"""Data sets: official archives, file formats, augmentation."""
