"""What the backends of this machine share, private: locks, the thread, the shape of the class."""
