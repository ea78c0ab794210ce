"""Container engines' configuration: text in, text out, and back again (pure).

Each module has ``register(text, ..., file)`` and ``unregister(text, file)``. A text of None is a
file that does not exist. What nvhook adds carries all that is needed to take it away: unregister
gives the text from before byte for byte, and where other parts have changed since, they stay.
"""
