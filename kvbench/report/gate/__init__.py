"""What the gate found, in every form that somebody reads: terminal, JSON, JUnit XML, Markdown, GitHub."""
