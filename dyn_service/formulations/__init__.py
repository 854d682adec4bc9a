"""The documents' equations a second time, written out and slow, to hold the compiled ones against; gait segments."""
