package metamanager

// Point is a moment at which a crash would be hardest to bear. Config.At is called when one is
// reached, so that a test can die right there.
type Point string

// The points, in the order of a write's life.
const (
	PointStaged   Point = "staged"   // changes are worked out, and not on the disk
	PointKept     Point = "kept"     // they are on the disk, and their writers have no answer yet
	PointSent     Point = "sent"     // a message was passed to the hub and has no answer yet
	PointReceived Point = "received" // results and states were received, but not written to the disk
	PointSettled  Point = "settled"  // they are on the disk, and not acknowledged to the cloud
)
