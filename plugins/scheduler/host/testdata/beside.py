LAST = -1
