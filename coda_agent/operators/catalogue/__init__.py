"""The operators that ship with coda-agent, one file each, named after its operator."""
