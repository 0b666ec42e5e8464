"""What is said with a scheduling plugin, and its SDK: it stands alone."""
