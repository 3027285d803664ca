"""The relay log: the windows of one physical source in files, behind its ring."""
