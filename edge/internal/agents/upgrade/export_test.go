package upgrade

import (
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// NextOpen is when a window is open next.
func NextOpen(w v1alpha1.OperationWindow, own *time.Location, now time.Time) (time.Time, error) {
	open, err := windowOf(w, own)
	return open.next(now), err
}
