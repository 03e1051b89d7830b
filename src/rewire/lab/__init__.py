"""The lab: networks, data, training and evidence; nothing in the library itself imports it."""
