package publish

import "time"

// Limits of one session.
const (
	frameBytes   = 256 << 10 // of a State; one object alone may be larger
	windowBytes  = 1 << 20   // sent and not acknowledged
	windowStates = 64        // likewise
	maxInterests = 4096
	// maxUnheard is how many interests may come while the window is shut. Refusals and sync markers
	// wait for each of them, also when it is gone again. Above, the session ends.
	maxUnheard = 4 * maxInterests

	// The charge for a declared set (cloudhub.Session): an interest costs some microseconds
	// to decode and to compare, one that is refused as much again. A pod with 500 ConfigMaps has
	// its edge declare up to some hundred sets that grow, which is within the credit.
	perInterest        = 100 * time.Microsecond
	perInventoryEntry  = time.Microsecond
	perRefusedInterest = time.Millisecond
)
