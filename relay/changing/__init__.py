"""Physical sources that come and go: tables found before, and the files of what was removed."""
