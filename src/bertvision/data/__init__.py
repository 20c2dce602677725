"""From text to windows: readers, the embedded demo set, tokenising and cutting."""
