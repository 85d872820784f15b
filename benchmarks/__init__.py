"""Speed and memory, side by side with what they are measured against."""
