"""Which of several devices are linked best with each other."""
