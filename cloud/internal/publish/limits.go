package publish

// Limits of one session.
const (
	frameBytes   = 256 << 10 // of a State; one object alone may be larger
	windowBytes  = 1 << 20   // sent and not acknowledged
	windowStates = 64        // likewise
	maxInterests = 4096
)
