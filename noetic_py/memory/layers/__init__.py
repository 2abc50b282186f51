"""The layers that come with the library, a module each."""
