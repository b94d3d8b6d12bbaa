package store

// For fuzzing: the parsers of what lies on the disk.
var (
	WalkPages = walkPages
	Unframe   = unframe
	Frame     = frame
)
