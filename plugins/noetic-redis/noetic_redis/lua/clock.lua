return text(now())
